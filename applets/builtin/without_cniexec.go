// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build no_cni_exec

package builtin

var cniexecApplet = &LeftOut
