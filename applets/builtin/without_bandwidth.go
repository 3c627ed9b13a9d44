// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build no_bandwidth

package builtin

var bandwidthApplet = &LeftOut
