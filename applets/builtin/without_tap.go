// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build no_tap

package builtin

var tapApplet = &LeftOut
