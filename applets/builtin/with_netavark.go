// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build !no_netavark

package builtin

import "github.com/cnibox/cnibox/applets/netavark"

var netavarkApplet = &netavark.Applet
