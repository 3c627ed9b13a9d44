// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build no_macvlan

package builtin

var macvlanApplet = &LeftOut
