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
	"path"
	"slices"
)

// table is in the order of names. It is filled while the package is
// initialised and never changes after.
var table Table

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
func All() Table { return slices.Clone(table) }

// Lookup finds an applet of the table, see [Table.Lookup].
func Lookup(name string) (*Applet, bool) { return table.Lookup(name) }

// Run runs the applet that argv0 names and returns its exit code; a name that
// names none is told on stderr, with 2.
func Run(ctx context.Context, argv0 string, p Process) int {
	p.Applets = table
	a, ok := table.Lookup(path.Base(argv0))
	if !ok {
		return Unknown(path.Base(argv0), p)
	}
	return a.Run(ctx, p)
}
