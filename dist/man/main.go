// Command man writes a manual page for each applet, from what the help is written from.
//
//	go run ./dist/man DIR
//
// DIR is created, and pages that are there are replaced. No part of it is in the product.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cnibox/cnibox/applets"
	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/cniexec"
	"github.com/cnibox/cnibox/spec"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "man:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 || args[0] == "" {
		return errors.New("write the directory of the pages behind it")
	}
	dir := args[0]
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(dir, "*.8"))
	if err != nil {
		return err
	}
	for _, path := range old {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	all := applets.All()
	for _, a := range all {
		if err := os.WriteFile(filepath.Join(dir, pageName(a)+".8"), []byte(manPage(a, all)), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// pageName is the name of the page of an applet: bridge(8) and netavark(1) are other programs.
func pageName(a *applet.Applet) string {
	if a.Main == nil || a.Name == "netavark" {
		return "cnibox-" + a.Name
	}
	return a.Name
}

// manPage is the manual page of an applet, one of all.
func manPage(a *applet.Applet, all applet.Table) string {
	p := newPage(pageName(a), a.Summary)
	switch {
	case a.Name == "cni-exec":
		p.runtime(cniexec.NewManual())
	case a.Name == "netavark":
		p.driver(a)
	case a.Main != nil:
		p.tool(a, all)
	default:
		p.plugin(a)
	}
	return p.b.String()
}

// plugin adds what follows the name of a plugin.
func (p *page) plugin(a *applet.Applet) {
	p.section("DESCRIPTION")
	p.text("The CNI plugin of a configuration with \"type\": \"" + a.Name + "\", which a container runtime or cni-exec(8) calls. " +
		"`cnibox help " + a.Name + "` prints what follows.")
	p.section("CONFIGURATION")
	p.keys(a.Help)
	p.environment()
	p.section("SEE ALSO")
	p.text("cnibox(8), cni-exec(8)")
}

// driver adds what follows the name of the driver of podman's networks.
func (p *page) driver(a *applet.Applet) {
	p.section("SYNOPSIS")
	p.verbatim(a.Help)
	p.environment()
	p.section("SEE ALSO")
	p.text("cnibox(8), cni-exec(8), podman-network-create(1)")
}

// environment adds the variables of plugins.
func (p *page) environment() {
	p.section("ENVIRONMENT")
	p.item(applet.LogEnv, "where to write one line for each call of a verb, with its duration and outcome:\nfile ("+
		applet.LogFile("file")+"), the absolute path of a file, syslog or stderr. Without it there is no log.")
	p.item(spec.StateEnv, "absolute path of a directory: state is stored below it, unless a key says where")
}

// tool adds what follows the name of cnibox.
func (p *page) tool(a *applet.Applet, all applet.Table) {
	p.section("SYNOPSIS")
	p.verbatim(a.Help)
	p.section("APPLETS")
	for _, other := range all {
		p.item(pageName(other)+"(8)", other.Summary)
	}
	p.section("SEE ALSO")
	p.text("cni-exec(8)")
}

// runtime adds what follows the name of cni-exec.
func (p *page) runtime(m cniexec.Manual) {
	p.section("SYNOPSIS")
	p.verbatim("cni-exec VERB [FLAG]… [OPERAND]…")
	p.section("DESCRIPTION")
	p.text(m.About)
	p.text(m.Operands)
	p.text(m.Notes)
	p.section("VERBS")
	for _, v := range m.Verbs {
		p.item(v.Usage, v.Text)
		p.indent()
		p.terms(v.Flags)
		for _, e := range v.Examples {
			p.verbatim(e.Term + "\n    " + e.Text)
		}
		p.outdent()
	}
	p.section("FLAGS OF ALL VERBS")
	p.terms(m.Flags)
	p.section("ENVIRONMENT")
	p.text(m.Environment)
	p.section("EXIT STATUS")
	p.text(m.Exit)
	p.section("SEE ALSO")
	p.text("cnibox(8); cnibox-NAME(8) for each plugin; ip-netns(8), nft(8)")
}

// terms adds an item for each.
func (p *page) terms(terms []cniexec.ManualTerm) {
	for _, t := range terms {
		p.item(t.Term, t.Text)
	}
}
