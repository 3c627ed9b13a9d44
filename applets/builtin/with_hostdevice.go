// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build !no_host_device

package builtin

import "github.com/cnibox/cnibox/applets/hostdevice"

var hostdeviceApplet = &hostdevice.Applet
