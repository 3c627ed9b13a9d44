// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build no_bridge

package builtin

var bridgeApplet = &LeftOut
