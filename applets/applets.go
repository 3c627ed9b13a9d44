// Package applets is the table of the programs of the binary: the CNI plugins, the runtime cni-exec
// and the tool cnibox. Each is a package below this one, whose value Applet a file with_NAME.go
// names; a build with the tag no_NAME has without_NAME.go in its place. The tool is always there.
//
// Package applet has the type of an applet and serves plugins. Plugins that create an interface
// share package attach, those that work on a prevResult share package chained.
package applets

import (
	"context"
	"path"
	"strings"

	"cnibox/applets/applet"
)

// table is in the order of names, and data that the linker lays out: nothing runs at the start of a
// plugin. In place of what a tag leaves out is leftOut.
var table = [...]*applet.Applet{
	bandwidthApplet,
	bridgeApplet,
	cniExecApplet,
	cniboxApplet,
	dhcpApplet,
	dummyApplet,
	firewallApplet,
	flannelApplet,
	hostDeviceApplet,
	hostLocalApplet,
	ipvlanApplet,
	loopbackApplet,
	macvlanApplet,
	netavarkApplet,
	portmapApplet,
	ptpApplet,
	sbrApplet,
	staticApplet,
	tapApplet,
	tuningApplet,
	vlanApplet,
	vrfApplet,
}

var leftOut applet.Applet

// All returns the applets in the order of their names.
// The caller may change the slice, but not the applets.
func All() applet.Table {
	all := make(applet.Table, 0, len(table))
	for _, a := range table {
		if a != &leftOut {
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
