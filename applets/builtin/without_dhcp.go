// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build no_dhcp

package builtin

var dhcpApplet = &LeftOut
