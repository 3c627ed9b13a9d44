package cniexec

import (
	"strings"

	"github.com/spf13/pflag"

	"cnibox/applets/applet"
)

// manPage is cni-exec(8) but for its name.
func manPage(p *applet.Page) {
	noEnv := func(string) string { return "" }
	p.Section("SYNOPSIS")
	p.Verbatim("cni-exec VERB [FLAG]… [OPERAND]…")
	p.Section("DESCRIPTION")
	p.Text(aboutText)
	p.Text(operandsText)
	p.Text(notesText)
	p.Section("VERBS")
	for _, v := range verbs() {
		v.man(p, v.declared(noEnv))
	}
	p.Section("FLAGS OF ALL VERBS")
	manFlags(p, commonFlags(new(flags).set(nil, noEnv)))
	p.Section("ENVIRONMENT")
	p.Text(environmentText)
	p.Section("EXIT STATUS")
	p.Text(exitText)
	p.Section("SEE ALSO")
	p.Text("cnibox(8); cnibox-NAME(8) for each plugin; ip-netns(8), nft(8)")
}

// man adds a verb, with the flags of its set.
func (v *verb) man(p *applet.Page, set *pflag.FlagSet) {
	p.Item(strings.TrimSpace(v.name+" "+v.operands), strings.TrimSpace(sentence(v.summary)+"\n"+v.text))
	p.Indent()
	manFlags(p, ownFlags(set))
	for _, e := range v.examples {
		p.Verbatim(e.line + "\n    " + e.what)
	}
	p.Outdent()
}

// manFlags adds flags.
func manFlags(p *applet.Page, flags []*pflag.Flag) {
	for _, flag := range flags {
		name, text := describe(flag)
		p.Item(strings.TrimSpace(name), text)
	}
}
