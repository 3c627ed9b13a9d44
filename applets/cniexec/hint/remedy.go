package hint

import (
	"errors"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/tty"
	"github.com/cnibox/cnibox/spec"
)

// A Remedy is what to do about an attachment. The zero value is nothing.
type Remedy struct {
	Text     string   // a few words, if no command helps
	Commands []string // in their order
	Reload   bool     // the command is reload
}

// Remedies finds the remedies for attachments.
type Remedies struct {
	Operand func(*chain.Entry) string // by which reload finds the container; nil: its ID
	Flags   string                    // with the directories of the state, behind each command
}

// For returns the remedy for what is known of an attachment. reloaded says that reload was tried.
func (r Remedies) For(j *chain.Judgement, reloaded bool) Remedy {
	code := 0
	if j.Err != nil {
		code = spec.AsError(j.Err).Code
	}
	switch {
	case j.State == chain.StateBusy, code == spec.CodeTryAgain:
		return Remedy{Text: "try again"}
	case errors.Is(j.Err, os.ErrPermission) && unix.Geteuid() != 0:
		return Remedy{Text: "run it as root"}
	case j.State == chain.StateGone, j.State == chain.StateInterrupted:
		return r.commands(j.Entry.DelCommand())
	case j.State != chain.StateFault:
		return Remedy{}
	case errors.Is(j.Err, spec.ErrNeedsAdd), reloaded && (code == spec.CodeCheck || code == spec.CodeBusy):
		return r.commands(j.Entry.DelCommand(), j.Entry.AddCommand())
	case reloaded, code == spec.CodeUnknown, code == spec.CodeNetNS:
		return Remedy{}
	}
	operand := j.ContainerID
	if r.Operand != nil {
		operand = r.Operand(j.Entry)
	}
	return r.Reload(operand)
}

// Reload returns the remedy reload for a container or a network; empty: all.
func (r Remedies) Reload(operand string) Remedy {
	m := r.commands(strings.TrimSpace("cni-exec reload " + operand))
	m.Reload = true
	return m
}

func (r Remedies) commands(commands ...string) Remedy {
	for i := range commands {
		commands[i] += r.Flags
	}
	return Remedy{Commands: commands}
}

// Advice returns the remedy as a sentence, for the second line of an error.
func (m Remedy) Advice() string {
	switch {
	case m.Reload:
		return "`" + m.Commands[0] + "` restores it"
	case len(m.Commands) == 1:
		return "`" + m.Commands[0] + "` detaches it"
	case len(m.Commands) == 2:
		return "`" + m.Commands[0] + "` detaches it, and `" + m.Commands[1] + "` attaches it again"
	}
	return m.Text
}

// Text says in one line what is known of an attachment: the same for all verbs.
func Text(j *chain.Judgement) string {
	text := j.Why
	if j.Err != nil {
		text = Reason(j.Err)
	}
	switch j.State {
	case chain.StateGone, chain.StateInterrupted, chain.StateBusy:
		return strings.TrimSuffix(j.State+": "+text, ": ")
	}
	return text
}

// Line adds a remedy without commands to a text.
func (m Remedy) Line(text string) string {
	if len(m.Commands) > 0 || m.Text == "" {
		return text
	}
	return text + ": " + m.Text
}

// Below returns the commands for the lines below one about a fault.
func (m Remedy) Below() string { return Below(m.Commands) }

// Below returns lines, indented.
func Below(lines []string) string {
	var b strings.Builder
	for _, line := range lines {
		if line != "" {
			b.WriteString("  " + spec.Printable(line) + "\n")
		}
	}
	return b.String()
}

// NotTested returns a line for each reason for which attachments were not tested, in the order of the
// first ones.
func NotTested(list []*chain.Judgement, title func(*chain.Entry) string) (lines []string) {
	names := map[string][]string{}
	var reasons []string
	for _, j := range list {
		why := (Remedies{}).For(j, false).Line(Text(j))
		if names[why] == nil {
			reasons = append(reasons, why)
		}
		names[why] = append(names[why], title(j.Entry))
	}
	slices.Sort(reasons)
	for _, why := range reasons {
		lines = append(lines, spec.Printable(tty.Several(names[why])+": "+why))
	}
	return lines
}
