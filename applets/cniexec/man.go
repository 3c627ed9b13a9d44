package cniexec

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"cnibox/applets/applet"
)

// manPage is cni-exec(8) but for its name.
func manPage(p *applet.Page) {
	set := new(flags).set(func(string) string { return "" })
	p.Section("SYNOPSIS")
	p.Verbatim("cni-exec VERB [FLAG]… [OPERAND]…")
	p.Section("DESCRIPTION")
	p.Text(aboutText)
	p.Text(operandsText)
	p.Section("VERBS")
	for _, v := range verbs() {
		v.man(p, set)
	}
	p.Section("FLAGS OF ALL VERBS")
	manFlags(p, set, func(of []string) bool { return of == nil })
	p.Section("ENVIRONMENT")
	p.Text(environmentText)
	p.Section("EXIT STATUS")
	p.Text(exitText)
	p.Section("SEE ALSO")
	p.Text("cnibox(8); cnibox-NAME(8) for each plugin; ip-netns(8), nft(8)")
}

// man adds a verb.
func (v *verb) man(p *applet.Page, set *pflag.FlagSet) {
	p.Item(strings.TrimSpace(v.name+" "+v.operands), strings.TrimSpace(sentence(v.summary)+"\n"+v.text))
	p.Indent()
	manFlags(p, set, func(of []string) bool { return slices.Contains(of, v.name) })
	for _, e := range v.examples {
		p.Verbatim(e.line + "\n    " + e.what)
	}
	p.Outdent()
}

// manFlags adds the flags whose verbs are asked for.
func manFlags(p *applet.Page, set *pflag.FlagSet, wanted func(verbs []string) bool) {
	set.VisitAll(func(flag *pflag.Flag) {
		if wanted(verbsOf(flag)) {
			name, text := describe(flag)
			p.Item(strings.TrimSpace(name), text)
		}
	})
}
