// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build no_portmap

package builtin

var portmapApplet = &LeftOut
