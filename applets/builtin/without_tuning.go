// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build no_tuning

package builtin

var tuningApplet = &LeftOut
