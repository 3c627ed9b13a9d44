// Package applets is the table of the programs that the binary is: the CNI plugins, the
// runtime cni-exec and the tool cnibox. Each has a package of its own below this one, whose
// value Applet a file with_NAME.go enters; a build with the tag no_NAME has no such plugin.
//
// What an applet is, and how a plugin is served, is in package applet. Plugins that make an
// interface share package attach, those that work on a prevResult share package result.
package applets

import (
	"context"
	"path"
	"slices"

	"cnibox/applets/applet"
)

// table is in the order of names. It is filled while the package is
// initialised and never changes after.
var table applet.Table

// register enters an applet; a name used twice is a mistake in the program.
// It is called while the package is initialised, by each applet's file.
func register(a *applet.Applet) {
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
func All() applet.Table { return slices.Clone(table) }

// Lookup finds an applet of the table, see [Table.Lookup].
func Lookup(name string) (*applet.Applet, bool) { return table.Lookup(name) }

// Run runs the applet that argv0 names and returns its exit code; a name that
// names none is told on stderr, with 2.
func Run(ctx context.Context, argv0 string, p applet.Process) int {
	p.Applets = table
	a, ok := table.Lookup(path.Base(argv0))
	if !ok {
		return applet.Unknown(path.Base(argv0), p)
	}
	return a.Run(ctx, p)
}
