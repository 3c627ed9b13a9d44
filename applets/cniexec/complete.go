package cniexec

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/cniexec/defaultnet"
	"github.com/cnibox/cnibox/applets/cniexec/inventory"
	"github.com/cnibox/cnibox/applets/cniexec/sandbox"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/spec"
)

// completeVerb is called by the completions of shells, with the words of the command line after the
// program; the last word is to be completed. No help mentions it.
//
// It prints a line for each matching word, with its description after a tab, or one of the lines
// below, by which the shell completes the word itself. It only reads, and reports no errors: a
// shell cannot show them.
const completeVerb = "complete"

// What the shell completes itself:
const (
	completeFile    = ":file"
	completeDir     = ":dir"
	completeCommand = ":command" // the command after "--"
)

// A completion is one word to complete.
type completion struct {
	*call
	found []string // lines
	value string   // the prefix of the candidates
	head  string   // the part of the word before the value, such as --net=
	names bool     // an operand ID may be a name
}

// complete prints the candidates for the last word.
func complete(p applet.Process, words []string) int {
	if len(words) == 0 {
		words = []string{""}
	}
	c := &completion{call: &call{Process: p}, value: words[len(words)-1]}
	if v := findVerb(verbIn(words[:len(words)-1])); v != nil {
		c.set = c.flags.declare(v.new(&call{}), p.Getenv)
	} else {
		c.set = allFlags(&c.flags, p.Getenv)
	}
	c.candidates(words[:len(words)-1])
	slices.Sort(c.found)
	for _, line := range slices.Compact(c.found) {
		word, _, _ := strings.Cut(line, "\t")
		if word == spec.Printable(word) { // the shell prints it, and would split it at a newline
			fmt.Fprintln(p.Stdout, line)
		}
	}
	return exitOK
}

// candidates finds the candidates for the value, after the words before it.
func (c *completion) candidates(before []string) {
	pending := c.readBefore(before)
	c.dirsErr = c.resolveDirs(c.Getenv)
	v := findVerb(c.verb)
	flag, value, assigned := strings.Cut(c.value, "=")
	switch {
	case c.command != nil:
		if v != nil && v.command {
			c.found = append(c.found, completeCommand)
		}
	case pending != nil:
		c.flagValue(pending)
	case assigned && c.flag(flag) != nil:
		c.head, c.value = flag+"=", value
		c.flagValue(c.flag(flag))
	case strings.HasPrefix(c.value, "-"):
		c.flagNames()
	case c.verb == "":
		c.verbNames()
	case v != nil:
		c.operand(v, len(c.operands))
	}
}

// readBefore reads the words before the one to complete: flags with their values, the verb, its
// operands and the command. It returns the flag that needs a value; nil: none. It skips errors in
// them.
func (c *completion) readBefore(words []string) (pending *pflag.Flag) {
	for i, w := range words {
		flag, value, assigned := strings.Cut(w, "=")
		switch {
		case pending != nil:
			_ = pending.Value.Set(w)
			pending = nil
		case w == "--":
			c.command = words[i+1:]
			return nil
		case len(w) > 1 && w[0] == '-':
			f := c.flag(flag)
			if f != nil && assigned {
				_ = f.Value.Set(value)
			} else if f != nil && f.NoOptDefVal == "" {
				pending = f
			}
		case c.verb == "":
			c.verb = w
		default:
			c.operands = append(c.operands, w)
		}
	}
	return pending
}

// flag finds the flag of a word; nil: there is none.
func (c *completion) flag(word string) *pflag.Flag {
	if name, ok := strings.CutPrefix(word, "--"); ok {
		return c.set.Lookup(name)
	}
	if len(word) == 2 {
		return c.set.ShorthandLookup(word[1:])
	}
	return nil
}

// add adds a candidate that begins with the value. It omits a name that a shell would have to
// quote.
func (c *completion) add(word, description string) {
	odd := func(r rune) bool { return !strings.ContainsRune("._-@+,:/%=", r) && !isAlphanumeric(r) }
	if !strings.HasPrefix(word, c.value) || word == "" || word[0] == ':' || strings.ContainsFunc(word, odd) {
		return
	}
	line := c.head + word
	if description != "" {
		line += "\t" + strings.Join(strings.Fields(description), " ")
	}
	c.found = append(c.found, line)
}

// isAlphanumeric reports whether a character is a letter or a digit of ASCII.
func isAlphanumeric(r rune) bool {
	return '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
}

func (c *completion) verbNames() {
	for _, v := range shownVerbs() {
		c.add(v.name, v.summary)
	}
}

// flagNames adds the flags of the verb and those of all verbs; without a verb, all.
func (c *completion) flagNames() {
	c.set.VisitAll(func(flag *pflag.Flag) {
		if flag.Hidden || c.verb != "" && findVerb(c.verb) == nil && !isCommon(flag) {
			return
		}
		_, text := usageOf(flag)
		text, _, _ = strings.Cut(text, ";")
		c.add("--"+flag.Name, text)
	})
}

// flagValue adds the values of a flag.
func (c *completion) flagValue(flag *pflag.Flag) {
	value, _ := usageOf(flag)
	value, _, _ = strings.Cut(value, "[") // of DIR[:DIR] the first one
	c.kinds(value)
}

// operand adds candidates for the nth operand, as the usage line of the verb describes it.
func (c *completion) operand(v *verb, n int) {
	c.names = true // --container-id takes none
	usage, _, _ := strings.Cut(v.operands, "-- ")
	for alternative := range strings.SplitSeq(usage, " | ") {
		inFlag := false
		var list []string
		for word := range strings.FieldsSeq(alternative) {
			inFlag = inFlag || strings.Contains(word, "--")
			if !inFlag {
				list = append(list, word)
			}
			inFlag = inFlag && !strings.Contains(word, "]")
		}
		if last := len(list) - 1; last >= 0 && n > last && strings.HasSuffix(list[last], "…") {
			n = last
		}
		if n < len(list) {
			c.kinds(strings.Trim(list[n], "[]…"))
		}
	}
}

// kinds adds the candidates for each of these words, which are separated by |. A word in capitals
// is the name of a kind, any other is the candidate itself.
func (c *completion) kinds(words string) {
	all := strings.Split(words, "|")
	for _, kind := range all {
		switch kind {
		case "ADDRESS", "MAC", "PROTO/PORT", "LINK":
			if c.value == "" && slices.Contains(all, "ID") {
				continue // that would be a long list
			}
		}
		switch kind {
		case "NETWORK":
			c.networkNames()
		case "ID", "ID/IFNAME":
			c.ids(kind)
		case "NETNS":
			c.namespaces()
		case "LINK":
			c.files("/sys/class/net")
		case "ADDRESS", "MAC", "PROTO/PORT":
			c.ofResults(kind)
		case "VERB":
			c.verbNames()
		case "FILE":
			c.found = append(c.found, completeFile)
		case "DIR":
			c.found = append(c.found, completeDir)
		default:
			if strings.ToLower(kind) == kind {
				c.add(kind, "")
			}
		}
	}
}

// networkNames adds the configured networks, and those with attachments.
func (c *completion) networkNames() {
	names, broken := chain.Networks(c.confDir)
	if len(names)+len(broken) == 0 {
		names = []string{defaultnet.Name}
	}
	for _, e := range c.recorded() {
		names = append(names, e.NetworkName)
	}
	for _, name := range names {
		c.add(name, "")
	}
}

// recorded returns the attachments, or those of the network if one was named.
func (c *completion) recorded() []*chain.Entry {
	if c.dirsErr != nil {
		return nil
	}
	entries, _, _ := c.cache().List() // the verb that follows reports the error
	matches := func(e *chain.Entry) bool {
		return len(c.operands) > 0 && e.NetworkName == c.operands[0]
	}
	if slices.ContainsFunc(entries, matches) {
		entries = slices.DeleteFunc(entries, func(e *chain.Entry) bool { return !matches(e) })
	}
	return entries
}

// ids adds the container IDs of attachments, with the interface if kind asks for it, and where a verb takes
// names, those that ls prints.
func (c *completion) ids(kind string) {
	v := inventory.Empty(nil, c.describer())
	for _, recorded := range c.recorded() {
		e := v.Read(recorded)
		about := e.NetworkName + " " + e.NetNSPath()
		if kind != "ID" {
			c.add(e.ContainerID+"/"+e.IfName, about)
			continue
		}
		c.add(e.ContainerID, about)
		if c.names && !strings.HasPrefix(e.ContainerID, e.Name()) {
			c.add(e.Name(), about)
		}
	}
}

// ofResults adds what attachments have got from their networks.
func (c *completion) ofResults(kind string) {
	v := inventory.Empty(nil, c.describer())
	for _, recorded := range c.recorded() {
		e := v.Read(recorded)
		switch kind {
		case "ADDRESS":
			for _, ip := range e.Addresses() {
				c.add(ip.Addr().String(), e.NetworkName+" "+e.Name())
			}
		case "MAC":
			c.add(e.MAC(), e.NetworkName+" "+e.Name())
		default:
			for _, port := range e.Ports {
				c.add(fmt.Sprintf("%s/%d", port.Protocol, port.HostPort), e.NetworkName+" "+e.Name())
			}
		}
	}
}

// namespaces adds the named ones, or files if the value is a path.
func (c *completion) namespaces() {
	if strings.Contains(c.value, "/") {
		c.found = append(c.found, completeFile)
		return
	}
	c.files(sandbox.NetNSDir)
}

// files adds the names in a directory.
func (c *completion) files(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		c.add(e.Name(), "")
	}
}
