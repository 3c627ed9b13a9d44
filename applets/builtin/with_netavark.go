// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build !no_netavark

package builtin

import "cnibox/applets/netavark"

var netavarkApplet = &netavark.Applet
