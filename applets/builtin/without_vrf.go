// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build no_vrf

package builtin

var vrfApplet = &LeftOut
