// Code generated from testdata/applets.golden; DO NOT EDIT.

package builtin

import "github.com/cnibox/cnibox/applets/applet"

// Table is in the order of names, and data that the linker lays out: nothing runs at the start of a plugin.
var Table = [...]*applet.Applet{
	bandwidthApplet,
	bridgeApplet,
	cniexecApplet,
	cniboxApplet,
	dhcpApplet,
	dummyApplet,
	firewallApplet,
	flannelApplet,
	hostdeviceApplet,
	hostlocalApplet,
	ipvlanApplet,
	loopbackApplet,
	macvlanApplet,
	netavarkApplet,
	portmapApplet,
	ptpApplet,
	sbrApplet,
	staticApplet,
	tapApplet,
	tcredirecttapApplet,
	tuningApplet,
	vlanApplet,
	vrfApplet,
}
