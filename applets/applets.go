// Package applets runs the programs of the binary: the CNI plugins, the runtime cni-exec and the tool cnibox. Each is
// a package below this one, whose value Applet is in the table of package builtin.
//
// Package applet has the type of an applet and serves plugins. Plugins that create an interface
// share package attach, those that work on a prevResult share package chained.
package applets

import (
	"context"
	"path"
	"strings"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/builtin"
)

// All returns the applets in the order of their names.
// The caller may change the slice, but not the applets.
func All() applet.Table {
	all := make(applet.Table, 0, len(builtin.Table))
	for _, a := range builtin.Table {
		if a != &builtin.LeftOut {
			all = append(all, a)
		}
	}
	return all
}

// Lookup finds an applet of the table, see [Table.Lookup].
func Lookup(name string) (*applet.Applet, bool) { return All().Lookup(name) }

// Run runs the applet that argv0 names and returns its exit code; a name that
// is unknown is reported on stderr, with 2.
func Run(ctx context.Context, argv0 string, p applet.Process) int {
	p.Applets = All()
	name := path.Base(argv0)
	a, ok := p.Applets.Lookup(name)
	if !ok && strings.HasPrefix(name, "cnibox-") && p.Getenv("CNI_COMMAND") == "" { // as of a download, cnibox-amd64
		a, ok = p.Applets.Lookup("cnibox")
	}
	if !ok {
		return applet.Unknown(name, p)
	}
	return a.Run(ctx, p)
}
