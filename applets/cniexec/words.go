package cniexec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/spell"
)

// foreignVerbs has what to write for verbs of other tools. A map of the package would be made at each start.
func foreignVerbs() map[string]string {
	return map[string]string{
		"attach":     "add NETWORK NETNS",
		"connect":    "add NETWORK NETNS",
		"containers": "ls",
		"delete":     "del ID",
		"detach":     "del ID",
		"disconnect": "del ID",
		"exec":       "enter ID -- COMMAND",
		"inspect":    "show ID|NETWORK",
		"list":       "ls",
		"network":    "ls --networks",
		"networks":   "ls --networks",
		"port":       "show ID",
		"prune":      "gc",
		"ps":         "ls",
		"remove":     "del ID",
		"repair":     "reload",
		"restore":    "reload",
	}
}

// foreignFlags has what to write for flags of other tools.
func foreignFlags() map[string]string {
	return map[string]string{
		"json":    "write -o json",
		"network": "write --net NETWORK",
		"port":    "write --publish HOST:CONTAINER",
		"rm":      "run deletes all that it has made when the command ends; leave it out",
	}
}

// formerKey is the annotation of a flag of an earlier release, with what to write in its place.
const formerKey = "former"

// former hides a flag of an earlier release.
func (f *flagSet) former(name, instead string) {
	flag := f.Lookup(name)
	flag.Hidden = true
	flag.Annotations = map[string][]string{formerKey: {instead}}
}

// warnOfFormer names the words of an earlier release in the command line, and what to write in
// their place.
func (c *call) warnOfFormer(v *verb) {
	if v.instead != "" {
		c.warnFormer(v.name, v.instead)
	}
	c.set.Visit(func(flag *pflag.Flag) {
		if instead := flag.Annotations[formerKey]; len(instead) > 0 {
			c.warn("%s: --%s will be removed: %s", v.name, flag.Name, instead[0])
		}
	})
}

// warnFormer names a word of the command line that an earlier release had, and prints the command
// line with another in its place.
func (c *call) warnFormer(word, instead string) {
	args := slices.Clone(c.args)
	for i, arg := range args {
		args[i] = chain.Quoted(arg)
	}
	if i := slices.Index(args, word); i >= 0 {
		args[i] = instead
	}
	c.warn("%q will be removed: write `cni-exec %s`", word, strings.Join(args, " "))
}

// unknownVerb is the error of a verb that does not exist, with the one that was probably meant.
func unknownVerb(name string) error {
	names := slices.Sorted(maps.Keys(foreignVerbs()))
	for _, v := range shownVerbs() {
		names = append(names, v.name)
	}
	near := spell.Nearest(name, names)
	switch instead := foreignVerbs()[near]; {
	case near == "":
		return usage("unknown verb %q", name)
	case instead != "":
		return usage("unknown verb %q: write `cni-exec %s`", name, instead)
	}
	return usage("unknown verb %q; did you mean %q?", name, near)
}

// unknownFlag is the error of a flag that no verb has, with the one of the verb that was probably
// meant. v is nil if there is no verb.
func (v *verb) unknownFlag(name string, long bool) error {
	if !long {
		return fmt.Errorf("unknown flag -%s", name)
	}
	if instead := foreignFlags()[name]; instead != "" {
		return fmt.Errorf("unknown flag --%s: %s", name, instead)
	}
	set := allFlags(new(flags), func(string) string { return "" })
	if v != nil {
		set = v.declared(func(string) string { return "" })
	}
	var names []string
	set.VisitAll(func(flag *pflag.Flag) {
		if !flag.Hidden {
			names = append(names, flag.Name)
		}
	})
	if near := spell.Nearest(name, names); near != "" {
		return fmt.Errorf("unknown flag --%s; did you mean --%s?", name, near)
	}
	return fmt.Errorf("unknown flag --%s", name)
}
