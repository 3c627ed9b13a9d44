//go:build no_host_device

package applets

var hostDeviceApplet = &leftOut
