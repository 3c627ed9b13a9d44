package cniexec

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cnibox/cnibox/internal/tty"
)

// The texts of `cni-exec help flags` are those of the manual page.
const (
	aboutText = `cni-exec attaches network namespaces to networks, as the CNI specification
asks of a runtime. Plugins of this binary run in one process; others are
found on CNI_PATH and started.
`
	operandsText = `NETWORK is the name in a configuration in --conf-dir, NETNS the path of a
network namespace (/proc/PID/ns/net), or a bare NAME for /run/netns/NAME.
Without any configuration the built-in network "cnibox" is used: a bridge with
port mapping.
`
	environmentText = `Environment, as cnitool has it: NETCONFPATH (--conf-dir), CNI_PATH (--path),
CNI_IFNAME (--ifname), CNI_CONTAINERID (--container-id), CNI_ARGS (KEY=VALUE;…),
CAP_ARGS (JSON object of capability arguments). Besides: CNIBOX_STATE is
--state-dir; CNIBOX_LOG=file, syslog, stderr or a path has one line for each
call of a verb; with NO_COLOR there is no colour.
`
	notesText = `Flags may stand anywhere before "--". del, check and get use the arguments of
the add unless others are given; the directories of state must be the add's.

A verb waits 2 minutes for others of the same container, and for a gc of the
same network; then its error has code 11 (try again later). check, ls --check,
doctor and reload wait 10 s (--timeout), and name what is busy.
`
	exitText = `Exit code: 0; 1 after an error, which is written to stderr; 2 for a wrong
command line; 3 where nothing wrong was found, but not everything could be
looked at; of run and enter: the command's.
`
)

// The rows of the first screen behind the verbs: what units and monitors use, and two examples.
const (
	unitsText = `Units     reload, reload --watch, up FILE, ls -o openmetrics: see cni-exec(8)
`
	startText = `  cni-exec run -- sh                  a shell in a namespace with a network
  cni-exec add --create mynet blue    attach /run/netns/blue, which it makes

` + "`cni-exec help VERB` has flags and examples; `cni-exec help flags` the rest." + `
`
)

// overview is the first screen: the verbs in groups.
func overview() string {
	var b strings.Builder
	b.WriteString("cni-exec attaches network namespaces to networks, by CNI plugins.\n\n")
	group := ""
	for _, v := range shownVerbs() {
		if v.group == "" {
			continue
		}
		title := v.group
		if title == group {
			title = ""
		}
		group = v.group
		fmt.Fprintf(&b, "%-8s  %-8s  %s\n", title, v.name, v.summary)
	}
	b.WriteString(unitsText + "\n" + startText)
	return b.String()
}

// helpOfFlags is the help about what all verbs have.
func helpOfFlags(set *pflag.FlagSet) string {
	return aboutText + "\n" + operandsText + "\n" + flagHelp(commonFlags(set)) + "\n" + environmentText + "\n" + notesText + "\n" + exitText
}

// help returns the text of `cni-exec VERB --help`, with the flags of its set. The flags of all
// verbs are in [helpOfFlags].
func (v *verb) help(set *pflag.FlagSet) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n%s\n", strings.TrimSpace("cni-exec "+v.name+" "+v.operands), sentence(v.summary))
	if v.text != "" {
		fmt.Fprintf(&b, "%s\n", v.text)
	}
	b.WriteString("\n")
	if flags := flagHelp(ownFlags(set)); flags != "" {
		b.WriteString(flags + "\n")
	}
	for _, e := range v.examples {
		fmt.Fprintf(&b, "  %s\n      %s\n", e.line, e.what)
	}
	return b.String()
}

// sentence adds a capital letter at the beginning and a period at the end, unless there is a
// question mark.
func sentence(s string) string {
	s = strings.ToUpper(s[:1]) + strings.ReplaceAll(s[1:], "\n", " ")
	if strings.HasSuffix(s, "?") {
		return s
	}
	return s + "."
}

// describe returns a flag with the name of its value, and its meaning.
func describe(flag *pflag.Flag) (name, text string) {
	value, text := usageOf(flag)
	name = "    "
	if flag.Shorthand != "" {
		name = "-" + flag.Shorthand + ", "
	}
	name = strings.TrimRight(name+"--"+flag.Name+" "+value, " ")
	if flag.Value.Type() == "string" && flag.DefValue != "" {
		text += "; default " + flag.DefValue
	}
	return name, text
}

// flagHelp returns the lines of flags: names with those of their values, and meanings.
func flagHelp(flags []*pflag.Flag) string {
	const indent = 25 // columns, as in the overview
	var b strings.Builder
	var line string
	endLine := func() {
		b.WriteString(strings.TrimRight(line, " ") + "\n")
		line = strings.Repeat(" ", indent)
	}
	for _, flag := range flags {
		name, text := describe(flag)
		if line = fmt.Sprintf("  %-*s", indent-2, name); !strings.HasSuffix(line, " ") {
			endLine()
		}
		for word := range strings.FieldsSeq(text) {
			if len(line)+len(word) > tty.Width {
				endLine()
			}
			line += word + " "
		}
		endLine()
	}
	return b.String()
}

func helpVerb() *verb {
	return &verb{name: "help", operands: "[VERB|flags]", summary: "print this help, or that of a verb", new: func(c *call) action { return &helpCall{call: c} },
		examples: []example{
			{"cni-exec help run", "the flags of run, and two examples"},
			{"cni-exec help flags", "those of all verbs, operands, variables and exit codes"},
		},
	}
}

// A helpCall is one call of help.
type helpCall struct {
	*call
}

func (*helpCall) flags(*flagSet) {}

func (v *helpCall) do(ctx context.Context, operands []string) (int, error) {
	return v.printHelp(ctx, operands)
}

// printHelp prints the help of a verb, or the overview.
func (c *call) printHelp(_ context.Context, operands []string) (int, error) {
	switch len(operands) {
	case 0:
		return c.write(overview())
	case 1:
		if operands[0] == "flags" {
			return c.write(helpOfFlags(new(flags).declare(nil, c.Getenv)))
		}
		v := findVerb(operands[0])
		if v != nil && v.instead != "" {
			word, _, _ := strings.Cut(v.instead, " ")
			v = findVerb(word)
		}
		if v != nil {
			return c.write(v.help(v.declared(c.Getenv)))
		}
		return 0, unknownVerb(operands[0])
	}
	return 0, c.tooMany(operands, 1)
}
