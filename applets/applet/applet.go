// Package applet has the type of a program of the binary: a name, a help text, and the verbs of a
// plugin or the main of a tool. [Serve] runs a plugin as the specification says.
//
// An applet uses its [Process] alone: not the environment, the standard streams, os.Exit or global
// state. So plugins can run in the process of another plugin, or of a test.
package applet

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/spec"
)

// An Applet is one program of the binary, found by the name under which it is called. Plugin (a plugin)
// or Main (a tool) is set; the tool cnibox has both, and is a plugin where a runtime calls it.
//
// Help describes every key of a plugin.
type Applet struct {
	Name    string             // base name of argv[0], and "type" of a configuration
	Summary string             // one line
	Help    string             // a configuration key on each line; for a tool its usage, or empty: its main prints the help for the argument help
	Plugin  func() spec.Plugin // of a plugin; a function, since a call of one plugin does not need those of the others

	// Conf is the zero value of the struct with a plugin's keys; nil: it has none. A key whose
	// value is the configuration of another plugin, named by its "type", has the tag plugin, whose
	// value is the plugin that runs without a "type".
	Conf any

	Main func(context.Context, Process) int

	// Again is the main of a plugin that re-execs itself, with arguments and without CNI_COMMAND.
	Again func(Process) int

	// Daemon is the daemon of a plugin, run as "NAME daemon" without CNI_COMMAND; nil: none.
	Daemon func(context.Context, Process) int
}

// A Process is the part of the process that an applet uses. Tests build one from buffers and maps.
type Process struct {
	Args           []string            // after the name
	Getenv         func(string) string // as [os.Getenv]
	Environ        []string            // as [os.Environ]; for programs that the applet starts
	Stdin          io.Reader
	Stdout, Stderr io.Writer

	// Applets are the programs of the binary; delegates and members of a chain are looked up here.
	Applets Table

	// Log is the line about the call for CNIBOX_LOG; nil: not configured.
	Log *Log

	// Session is open until the process ends: it takes milliseconds to close a socket after the deletion of rules, and fewer if
	// the kernel frees all of a process at once. Nil: each call has one of its own, which it closes.
	Session *session.Session

	// ForceExec runs even built-in plugins as processes; tests compare both ways.
	ForceExec bool
}

// Invoker returns the runner of delegates and members of a chain: plugins found in the directories
// of path, and built-in ones. A delegate has the environment and stderr of its caller.
func (p Process) Invoker(path []string) *chain.Invoker {
	return &chain.Invoker{Path: path, Lookup: p.Applets.Plugin, Names: p.Applets.Plugins, Environ: p.Environ, Stderr: spec.Lines(p.Stderr), ForceExec: p.ForceExec}
}

// Complain writes one line to stderr, for a program or a part of one: a warning or an error.
// Applets write everything there with it, except the stderr of plugins ([spec.Lines]). It replaces
// what a terminal would interpret, and cuts long quoted values.
func (p Process) Complain(program, format string, args ...any) {
	fmt.Fprintf(p.Stderr, "%s: %s\n", program, spec.Printable(spec.Shorten(fmt.Sprintf(format, args...))))
}

// A Table has all applets of a binary, sorted by name.
type Table []*Applet

// Lookup finds the applet for the base name of a program or a plugin type: by the exact name, else
// the longest applet name that follows a "-" at the end of the base name (buildkit-cni-host-local
// is host-local). BuildKit and KubeVirt install plugins under such names, and use these as type.
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
func (t Table) Plugin(name string) (spec.Plugin, bool) {
	a, ok := t.Lookup(name)
	if !ok || a.Plugin == nil {
		return spec.Plugin{}, false
	}
	return a.Plugin(), true
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

// plugin returns the plugin; for another applet the zero value.
func (a *Applet) plugin() spec.Plugin {
	if a.Plugin == nil {
		return spec.Plugin{}
	}
	return a.Plugin()
}

// Run runs the applet and returns its exit code. A runtime that calls a tool as a plugin gets an
// error: exit code 0 would mean success.
//
// With CNIBOX_LOG it writes a line at the end, unless the call is part of one that has a line.
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
			if a.Plugin != nil {
				return Serve(ctx, a, p)
			}
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

// Unknown reports a name that is not that of an applet, or of a plugin. If a runtime calls, it
// writes an error object to stdout.
func Unknown(name string, p Process) int {
	err := spec.Errorf(spec.CodeEnv, "%q is not a plugin of cnibox: the program must be called by the name of one", name)
	if p.Getenv("CNI_COMMAND") != "" {
		p.Stdout.Write(err.Encode(spec.Newest))
	}
	p.Complain("cnibox", "%s (`cnibox` lists them, `cnibox install DIR` creates their files)", err)
	return 2
}
