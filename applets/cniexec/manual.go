package cniexec

import (
	"strings"

	"github.com/spf13/pflag"
)

// A Manual is the source of cni-exec(8): the texts and the declarations of the help. The program
// itself does not use it.
type Manual struct {
	About, Operands, Notes, Environment, Exit string

	Verbs []ManualVerb
	Flags []ManualTerm // of all verbs
}

// A ManualVerb is a verb with its own flags.
type ManualVerb struct {
	Usage, Text string
	Flags       []ManualTerm
	Examples    []ManualTerm // command lines
}

// A ManualTerm is text to type, and its meaning.
type ManualTerm struct{ Term, Text string }

// NewManual returns the texts for an empty environment, which can change defaults of flags.
func NewManual() Manual {
	noEnv := func(string) string { return "" }
	m := Manual{
		About: aboutText, Operands: operandsText, Notes: notesText, Environment: environmentText, Exit: exitText,
		Flags: manualFlags(commonFlags(new(flags).declare(nil, noEnv))),
	}
	for _, v := range shownVerbs() {
		verb := ManualVerb{
			Usage: strings.TrimSpace(v.name + " " + v.operands),
			Text:  strings.TrimSpace(sentence(v.summary) + "\n" + v.text),
			Flags: manualFlags(ownFlags(v.declared(noEnv))),
		}
		for _, e := range v.examples {
			verb.Examples = append(verb.Examples, ManualTerm{e.line, e.what})
		}
		m.Verbs = append(m.Verbs, verb)
	}
	return m
}

func manualFlags(flags []*pflag.Flag) (list []ManualTerm) {
	for _, flag := range flags {
		name, text := describe(flag)
		list = append(list, ManualTerm{strings.TrimSpace(name), text})
	}
	return list
}
