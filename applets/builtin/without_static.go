// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build no_static

package builtin

var staticApplet = &LeftOut
