// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build no_host_local

package builtin

var hostlocalApplet = &LeftOut
