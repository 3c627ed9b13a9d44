// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build no_dummy

package builtin

var dummyApplet = &LeftOut
