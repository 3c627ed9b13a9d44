//go:build !no_netavark

package applets

import "cnibox/applets/netavark"

var netavarkApplet = &netavark.Applet
