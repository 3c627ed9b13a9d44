// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build no_netavark

package builtin

var netavarkApplet = &LeftOut
