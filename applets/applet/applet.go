// Package applet is what a program of the binary is: a name, a help text, and the verbs of a
// plugin or the main of a tool. [Serve] runs a plugin as the specification says.
//
// An applet is a function of its [Process]: it reads no environment, prints nothing, does not
// exit and keeps no state behind the back of its caller. So plugins can run in the process of
// another one, and tests need no process.
package applet

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

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
	Help    string     // one configuration key a line; of a tool, its usage, or empty: its main prints it for the argument help
	Conf    any        // of a plugin: the zero value of the struct with its keys; nil: it has none
	Verbs   spec.Verbs // a plugin's
	Main    func(context.Context, Process) int

	// Man adds to the manual page what follows the name; nil: that is made of Help.
	Man func(*Page)

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

	// Applets are the programs of the binary: delegates and members of a chain are found
	// among them.
	Applets Table

	// Log is the line about the call for CNIBOX_LOG; nil: none is wanted.
	Log *Log

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
func (p Process) Invoker(path []string) *chain.Local {
	return &chain.Local{Path: path, Lookup: p.Applets.Plugin, Environ: p.Environ, Stderr: p.Stderr, ForceExec: p.ForceExec}
}

// A Table is all applets of a binary, in the order of their names.
type Table []*Applet

// Lookup finds the applet that a program or a plugin type of this base name
// means: the exact name, else the longest name of an applet that the base name
// ends in after a "-" (buildkit-cni-host-local is host-local).
// BuildKit and KubeVirt install plugins under such names, and write them as type.
func (t Table) Lookup(name string) (*Applet, bool) {
	var found *Applet
	for _, a := range t {
		if a.Name == name {
			return a, true
		}
		if strings.HasSuffix(name, "-"+a.Name) && (found == nil || len(a.Name) > len(found.Name)) {
			found = a
		}
	}
	return found, found != nil
}

// plugin is Lookup for delegates and members of a chain: tools are no plugins.
func (t Table) Plugin(name string) (spec.Verbs, bool) {
	a, ok := t.Lookup(name)
	if !ok || a.Main != nil {
		return spec.Verbs{}, false
	}
	return a.Verbs, true
}

// Run is the applet's main; the exit code is its own to choose. A tool that a runtime
// calls, for a plugin of its name, is refused: exit code 0 would be a success.
//
// With CNIBOX_LOG a line is written at the end, unless it is part of a call that has one.
func (a *Applet) Run(ctx context.Context, p Process) int {
	where := p.Getenv(LogEnv)
	if where == "" || p.Log != nil {
		return a.run(ctx, p)
	}
	p.Log = &Log{program: a.Name, where: where, stderr: p.Stderr, start: time.Now()}
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

// Unknown answers for a name that is no applet's, or no plugin's. A runtime that called it gets
// an error it can read, since an empty stdout would say nothing to it.
func Unknown(name string, p Process) int {
	err := spec.Errorf(spec.CodeEnv, "%q is no plugin of cnibox: the program must be called by the name of one", name)
	if p.Getenv("CNI_COMMAND") != "" {
		p.Stdout.Write(err.Encode(spec.Newest))
	}
	fmt.Fprintf(p.Stderr, "cnibox: %s (`cnibox` lists them, `cnibox install DIR` makes the links)\n", err)
	return 2
}
