// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build !no_portmap

package builtin

import "github.com/cnibox/cnibox/applets/portmap"

var portmapApplet = &portmap.Applet
