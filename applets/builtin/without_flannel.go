// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build no_flannel

package builtin

var flannelApplet = &LeftOut
