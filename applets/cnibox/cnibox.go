// Package cnibox is the tool cnibox: lists the applets, describes their keys, installs and verifies their files.
package cnibox

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/spell"
	"github.com/cnibox/cnibox/spec"
)

// Applet is the tool.
var Applet = applet.Applet{
	Name:    "cnibox",
	Summary: "lists the applets, describes their keys, installs and verifies their files",
	Help: `
cnibox                print the first screen: commands and plugins
cnibox list           list the applets
cnibox APPLET …       run APPLET, as its link does
cnibox help APPLET    show every key of a plugin's configuration
cnibox install [--create] [--copy] [--keep | --leave] [--path PATH]
               DIR [APPLET …]
                      create a file in DIR for each applet, or these: a
                      line with the path of this binary, which the
                      kernel starts; files of these names are replaced
                      atomically; --create: create DIR if it is missing;
                      --copy: copy this binary into DIR first, as the
                      image of a release does; --keep: keep the files
                      of other programs that are replaced, for
                      uninstall; --leave: leave these in place; --path:
                      the path of DIR where the plugins are run, if DIR
                      is a mount of it
cnibox uninstall DIR  delete the files that start this binary in DIR and
                      its copy, and put back what --keep has kept
cnibox verify [--path PATH] DIR
                      check that each applet's name in DIR leads to
                      this binary; exit code 1 if one does not
cnibox fold [--in-place] FILE …
                      print the list with its plugins as one of the type
                      cnibox, which runs them in one process; --in-place:
                      write it into FILE, and the old one into FILE.bak
cnibox unfold [--in-place] FILE …
                      print the list with the plugins in its place
cnibox create | setup NETNS | teardown NETNS | info
                      the applet netavark: netavark calls a driver by the
                      name of its file, which is cnibox for -d cnibox
cnibox version        print the version and the releases it implements

As a plugin, of a configuration with "type": "cnibox":

key      type  default  meaning
plugins  list  -        configurations of plugins, which run in this
                        process as a list does; their capabilities
                        must be here as well`,
	Main:   run,
	Plugin: func() spec.Plugin { return chain.FoldPlugin() },
	Conf:   chain.Fold{},
}

// run returns 0, 1 for a failure, and 2 for a wrong command line. As with busybox, the first
// argument may be the name of an applet.
func run(ctx context.Context, p applet.Process) int {
	if len(p.Args) == 0 {
		return writeFirst(p)
	}
	cmd, args := p.Args[0], p.Args[1:]
	switch {
	case applet.IsHelp(cmd):
		return help(ctx, p, args)
	case cmd == "list" || cmd == "--list":
		return writeList(p)
	case cmd == "version" || cmd == "--version":
		fmt.Fprint(p.Stdout, applet.VersionLine("cnibox"))
		return 0
	case cmd == "install" || cmd == "--install":
		return installCommand(ctx, p, args)
	case cmd == "uninstall":
		return uninstallCommand(ctx, p, args)
	case cmd == "verify" || cmd == "--verify":
		return verifyCommand(p, args)
	case cmd == "fold" || cmd == "unfold":
		return foldCommand(p, cmd, args)
	}
	if slices.Contains([]string{"create", "setup", "teardown", "info"}, cmd) { // netavark calls this driver, by the name that it has
		cmd, args = "netavark", p.Args
	}
	a, ok := p.Applets.Lookup(cmd)
	if !ok {
		return usage(p, "no applet or command is named %q%s", cmd, suggest(p.Applets, cmd))
	}
	if a.Name == "cnibox" {
		return usage(p, "cnibox does not run itself")
	}
	p.Args = args
	return a.Run(ctx, p)
}

// usage reports a wrong command line, and returns the exit code for it.
func usage(p applet.Process, format string, args ...any) int {
	p.Complain("cnibox", "%s (`cnibox` lists the applets, `cnibox help cnibox` the commands)", fmt.Sprintf(format, args...))
	return 2
}

// help prints the keys of an applet, or without a name the list of applets.
func help(ctx context.Context, p applet.Process, args []string) int {
	if len(args) == 0 {
		return writeFirst(p)
	}
	a, ok := p.Applets.Lookup(args[0])
	if !ok {
		return usage(p, "no applet is named %q%s", args[0], suggest(p.Applets, args[0]))
	}
	if a.Help == "" {
		p.Args = []string{"help"}
		return a.Run(ctx, p)
	}
	return applet.WriteHelp(a, p.Stdout)
}

// writeFirst prints the first screen: the commands and the plugins, in groups.
func writeFirst(p applet.Process) int {
	fmt.Fprint(p.Stdout, `cnibox is all CNI plugins and the runtime cni-exec in one binary: the name by which
it is called selects one.

Run       cnibox NAME …         run cni-exec, or a plugin as a runtime does
          cnibox help NAME      print each key of a plugin's configuration
          cnibox list           list the programs
          cnibox version        print the version
Install   cnibox install DIR    make a file for each plugin
          cnibox verify DIR     check that these lead to this binary
          cnibox uninstall DIR  delete them
Convert   cnibox fold FILE      write a list whose plugins run in one process
          cnibox unfold FILE    write it as a list of plugins
`)
	titles := [...]string{"Interface", "Addresses", "Chained"}
	var groups [len(titles)][]string
	for _, a := range p.Applets {
		if a.Main != nil {
			continue
		}
		switch plugin := a.Plugin(); {
		case plugin.IPAM:
			groups[1] = append(groups[1], a.Name)
		case plugin.Chained:
			groups[2] = append(groups[2], a.Name)
		default:
			groups[0] = append(groups[0], a.Name)
		}
	}
	for i, names := range groups {
		if len(names) > 0 {
			fmt.Fprintf(p.Stdout, "%-9s %s\n", titles[i], strings.Join(names, " "))
		}
	}
	fmt.Fprint(p.Stdout, `
  cnibox install /opt/cni/bin    where most runtimes look for plugins
  cnibox cni-exec run -- sh      a shell in a namespace with a network

`+"`cnibox help cnibox` has the flags of these commands, `cni-exec` its own.\n")
	return 0
}

// writeList prints the applets, one on each line, sorted by name.
func writeList(p applet.Process) int {
	all := p.Applets
	width := 0
	for _, a := range all {
		width = max(width, len(a.Name))
	}
	for _, a := range all {
		fmt.Fprintf(p.Stdout, "  %-*s  %s\n", width, a.Name, a.Summary)
	}
	return 0
}

// suggest returns a question that names the applet nearest to a misspelled name; empty: none.
func suggest(all applet.Table, name string) string {
	var names []string
	for _, a := range all {
		names = append(names, a.Name)
	}
	if near := spell.Nearest(name, names); near != "" {
		return fmt.Sprintf("; %q?", near)
	}
	return ""
}
