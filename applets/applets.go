// Package applets is the table of the programs of the binary: the CNI plugins, the runtime cni-exec
// and the tool cnibox. Each is a package below this one, whose value Applet a file with_NAME.go
// registers; a build with the tag no_NAME does not have it. The tool is always there.
//
// Package applet has the type of an applet and serves plugins. Plugins that create an interface
// share package attach, those that work on a prevResult share package result.
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
// The caller may change the slice, but not the applets.
func All() applet.Table { return slices.Clone(table) }

// Lookup finds an applet of the table, see [Table.Lookup].
func Lookup(name string) (*applet.Applet, bool) { return table.Lookup(name) }

// Run runs the applet that argv0 names and returns its exit code; a name that
// is unknown is reported on stderr, with 2.
func Run(ctx context.Context, argv0 string, p applet.Process) int {
	p.Applets = table
	a, ok := table.Lookup(path.Base(argv0))
	if !ok {
		return applet.Unknown(path.Base(argv0), p)
	}
	return a.Run(ctx, p)
}
