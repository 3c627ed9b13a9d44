// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build no_sbr

package builtin

var sbrApplet = &LeftOut
