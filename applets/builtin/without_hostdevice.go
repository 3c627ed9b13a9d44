// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build no_host_device

package builtin

var hostdeviceApplet = &LeftOut
