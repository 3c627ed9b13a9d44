//go:build !no_host_device

package applets

import "cnibox/applets/hostdevice"

var hostDeviceApplet = &hostdevice.Applet
