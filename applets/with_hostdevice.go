//go:build !no_host_device

package applets

import "cnibox/applets/hostdevice"

func init() { register(&hostdevice.Applet) }
