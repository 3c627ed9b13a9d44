// Package applets holds every program that the binary is: the CNI plugins, the
// runtime cni-exec and the tool cnibox. Each is a value in a table, in a file
// of its own, and a function of what it is given: none reads the environment,
// prints, exits or keeps state behind the back of its caller.
//
// Begin reading at [Run], then [Serve] for a plugin or cniExec for the runtime. A file
// is named after its applet, bridge_vlan.go and the like after a part of one. What
// plugins share is in attach (those that make an interface), netns and record.go.
package applets

import (
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"cnibox/chain"
	"cnibox/spec"
)

// An Applet is one program of the binary, found by the name it is called by.
// Either Verbs (a plugin) or Main (a tool) is set.
//
// Help is all that users are told of a plugin, so every key is in it.
type Applet struct {
	Name    string     // base name of argv[0], and "type" of a configuration
	Summary string     // one line
	Help    string     // one configuration key a line; of a tool, its usage
	Verbs   spec.Verbs // a plugin's
	Main    func(context.Context, Process) int

	// Again is what a plugin does that it has started itself: with arguments, and
	// without CNI_COMMAND. Few need it.
	Again func(Process) int

	// Daemon is set for a plugin that has one, run as "NAME daemon" without CNI_COMMAND.
	Daemon func(context.Context, Process) int

	// AnyNetNS is set for address plugins that never enter the namespace: for
	// them a CNI_NETNS that is none (as /dev/null) is no error.
	AnyNetNS bool
}

// A Process is what an applet sees of the process it runs in.
// Tests make one of buffers and maps; so no test needs a process but those of signals.
type Process struct {
	Args           []string            // after the name
	Getenv         func(string) string // as [os.Getenv]
	Environ        []string            // as [os.Environ]; for programs that the applet starts
	Stdin          io.Reader
	Stdout, Stderr io.Writer

	// Threads makes those that an ADD may need, before its first change: Go's runtime ends
	// the process where it cannot make one. Nil: they are made when they are needed.
	Threads func()

	// ForceExec starts a process even for plugins that are built in; tests
	// compare both ways.
	ForceExec bool
}

// An EndedBy is the cause of a context that a signal has ended.
type EndedBy unix.Signal

// Error names the signal as kill(1) does.
func (s EndedBy) Error() string { return "ended by " + unix.SignalName(unix.Signal(s)) }

// invoker returns what runs delegates and members of a chain: plugins found in
// the folders of path, and those built in.
// A delegate has the environment and stderr of the one who calls it.
func (p Process) invoker(path []string) *chain.Local {
	return &chain.Local{Path: path, Lookup: lookupPlugin, Environ: p.Environ, Stderr: p.Stderr, ForceExec: p.ForceExec}
}

// table is in the order of names. It is filled while the package is
// initialised and never changes after.
var table []*Applet

// register enters an applet; a name used twice is a mistake in the program.
// It is called while the package is initialised, by each applet's file.
func register(a *Applet) {
	i := 0
	for i < len(table) && table[i].Name < a.Name {
		i++
	}
	if i < len(table) && table[i].Name == a.Name {
		panic("applet " + a.Name + " is registered twice")
	}
	table = append(table, nil)
	copy(table[i+1:], table[i:])
	table[i] = a
}

// All returns the applets in the order of their names.
// The slice is the caller's; the applets are everyone's and must not be changed.
func All() []*Applet { return slices.Clone(table) }

// Lookup finds the applet that a program or a plugin type of this base name
// means: the exact name, else the longest name of an applet that the base name
// ends in after a "-" (buildkit-cni-host-local is host-local).
// BuildKit and KubeVirt install plugins under such names, and write them as type.
func Lookup(name string) (*Applet, bool) {
	var found *Applet
	for _, a := range table {
		if a.Name == name {
			return a, true
		}
		if strings.HasSuffix(name, "-"+a.Name) && (found == nil || len(a.Name) > len(found.Name)) {
			found = a
		}
	}
	return found, found != nil
}

// lookupPlugin is [Lookup] for delegates and members of a chain: tools are no plugins.
func lookupPlugin(name string) (spec.Verbs, bool) {
	a, ok := Lookup(name)
	if !ok || a.Main != nil {
		return spec.Verbs{}, false
	}
	return a.Verbs, true
}

// Run runs the applet that argv0 names and returns its exit code; a name that
// names none is told on stderr, with 2.
func Run(ctx context.Context, argv0 string, p Process) int {
	a, ok := Lookup(path.Base(argv0))
	if !ok {
		return unknown(path.Base(argv0), p)
	}
	return a.run(ctx, p)
}

// run is the applet's main; the exit code is its own to choose. A tool that a runtime
// calls, for a plugin of its name, is refused: exit code 0 would be a success.
func (a *Applet) run(ctx context.Context, p Process) int {
	if a.Main != nil {
		if len(p.Args) == 0 && p.Getenv("CNI_COMMAND") != "" {
			return unknown(a.Name, p)
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

// unknown answers for a name that is no applet's, or no plugin's. A runtime that called it gets
// an error it can read, since an empty stdout would say nothing to it.
func unknown(name string, p Process) int {
	err := spec.Errorf(spec.CodeEnv, "%q is no plugin of cnibox: the program must be called by the name of one", name)
	if p.Getenv("CNI_COMMAND") != "" {
		p.Stdout.Write(err.Encode(spec.Newest))
	}
	fmt.Fprintf(p.Stderr, "cnibox: %s (`cnibox` lists them, `cnibox install DIR` makes the links)\n", err)
	return 2
}
