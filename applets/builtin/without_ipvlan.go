// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build no_ipvlan

package builtin

var ipvlanApplet = &LeftOut
