// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build no_loopback

package builtin

var loopbackApplet = &LeftOut
