// Package applet has the type of a program of the binary: a name, a help text, and the verbs of a
// plugin or the main of a tool. [Serve] runs a plugin as the specification says.
//
// An applet uses its [Process] alone: not the environment, the standard streams, os.Exit or global
// state. So plugins can run in the process of another one, and in that of a test.
package applet

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"cnibox/chain"
	"cnibox/spec"
)

// An Applet is one program of the binary, found by the name it is called by.
// Either Verbs (a plugin) or Main (a tool) is set.
//
// Help describes every key of a plugin.
type Applet struct {
	Name    string            // base name of argv[0], and "type" of a configuration
	Summary string            // one line
	Help    string            // one configuration key a line; of a tool, its usage, or empty: its main prints it for the argument help
	Verbs   func() spec.Verbs // a plugin's; a function, since a call of one plugin needs those of no other

	// Conf is, of a plugin, the zero value of the struct with its keys; nil: it has none. A key
	// whose value is the configuration of another plugin, named by its "type", has the tag
	// plugin with the one that is run without that.
	Conf any

	Main func(context.Context, Process) int

	// Again is the main of a plugin that re-execs itself: with arguments, and without CNI_COMMAND.
	Again func(Process) int

	// Daemon is set for a plugin that has one, run as "NAME daemon" without CNI_COMMAND.
	Daemon func(context.Context, Process) int

	// AnyNetNS is set for IPAM plugins that never enter the namespace: for them CNI_NETNS may be
	// any path, as /dev/null.
	AnyNetNS bool
}

// A Process is what an applet sees of the process it runs in.
// Tests make one of buffers and maps.
type Process struct {
	Args           []string            // after the name
	Getenv         func(string) string // as [os.Getenv]
	Environ        []string            // as [os.Environ]; for programs that the applet starts
	Stdin          io.Reader
	Stdout, Stderr io.Writer

	// Threads starts those that an ADD may need, where a limit leaves few, before its first change:
	// Go's runtime ends the process if it cannot start one. Nil: they are started when they are
	// needed.
	Threads func()

	// Applets are the programs of the binary: delegates and members of a chain are found
	// among them.
	Applets Table

	// Log is the line about the call for CNIBOX_LOG; nil: none is wanted.
	Log *Log

	// ForceExec starts a process even for plugins that are built in; tests
	// compare both ways.
	ForceExec bool
}

// Invoker returns what runs delegates and members of a chain: plugins found in
// the directories of path, and those built in. A delegate has the environment and stderr of its
// caller.
func (p Process) Invoker(path []string) *chain.Invoker {
	return &chain.Invoker{Path: path, Lookup: p.Applets.Plugin, Names: p.Applets.Plugins, Environ: p.Environ, Stderr: spec.Lines(p.Stderr), ForceExec: p.ForceExec}
}

// Complain writes one line to stderr, of a program or a part of one: a warning or an error. All
// that applets write there is written by it, but for the stderr of plugins ([spec.Lines]). What would act on a
// terminal is replaced, and long values that are quoted are cut.
func (p Process) Complain(program, format string, args ...any) {
	fmt.Fprintf(p.Stderr, "%s: %s\n", program, spec.Printable(spec.Shorten(fmt.Sprintf(format, args...))))
}

// A Table is all applets of a binary, in the order of their names.
type Table []*Applet

// Lookup finds the applet of the base name of a program or a plugin type: the exact name, else
// the longest name of an applet that the base name
// ends in after a "-" (buildkit-cni-host-local is host-local).
// BuildKit and KubeVirt install plugins under such names, and write them as type.
func (t Table) Lookup(name string) (*Applet, bool) {
	var found *Applet
	for _, a := range t {
		if a.Name == name {
			return a, true
		}
		if before, ok := strings.CutSuffix(name, a.Name); ok && strings.HasSuffix(before, "-") && (found == nil || len(a.Name) > len(found.Name)) {
			found = a
		}
	}
	return found, found != nil
}

// Plugin is Lookup for delegates and members of a chain: tools are not plugins.
func (t Table) Plugin(name string) (spec.Verbs, bool) {
	a, ok := t.Lookup(name)
	if !ok || a.Main != nil {
		return spec.Verbs{}, false
	}
	return a.verbs(), true
}

// Plugins returns the names of all plugins.
func (t Table) Plugins() (names []string) {
	for _, a := range t {
		if a.Main == nil {
			names = append(names, a.Name)
		}
	}
	return names
}

// verbs are the plugin's; of an applet without any, all are the defaults of [spec.Verbs].
func (a *Applet) verbs() spec.Verbs {
	if a.Verbs == nil {
		return spec.Verbs{}
	}
	return a.Verbs()
}

// Run runs the applet and returns its exit code. A tool that a runtime calls as a plugin is an
// error: exit code 0 would be a success.
//
// With CNIBOX_LOG a line is written at the end, unless it is part of a call that has one.
func (a *Applet) Run(ctx context.Context, p Process) int {
	where := p.Getenv(LogEnv)
	if where == "" || p.Log != nil {
		return a.run(ctx, p)
	}
	p.Log = &Log{program: a.Name, where: where, process: p, start: time.Now()}
	exit := a.run(ctx, p)
	p.Log.Write(exit)
	return exit
}

// run is Run without a log.
func (a *Applet) run(ctx context.Context, p Process) int {
	if a.Main != nil {
		if len(p.Args) == 0 && p.Getenv("CNI_COMMAND") != "" {
			return Unknown(a.Name, p)
		}
		return a.Main(ctx, p)
	}
	if a.Again != nil && len(p.Args) > 1 && p.Getenv("CNI_COMMAND") == "" {
		return a.Again(p)
	}
	if a.Daemon != nil && len(p.Args) > 0 && p.Args[0] == "daemon" && p.Getenv("CNI_COMMAND") == "" {
		p.Args = p.Args[1:]
		return a.Daemon(ctx, p)
	}
	return Serve(ctx, a, p)
}

// Unknown reports a name that is not an applet's, or not a plugin's: on stdout, as an error object,
// if a runtime calls.
func Unknown(name string, p Process) int {
	err := spec.Errorf(spec.CodeEnv, "%q is not a plugin of cnibox: the program must be called by the name of one", name)
	if p.Getenv("CNI_COMMAND") != "" {
		p.Stdout.Write(err.Encode(spec.Newest))
	}
	p.Complain("cnibox", "%s (`cnibox` lists them, `cnibox install DIR` makes the links)", err)
	return 2
}
