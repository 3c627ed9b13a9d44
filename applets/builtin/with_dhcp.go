// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build !no_dhcp

package builtin

import "github.com/cnibox/cnibox/applets/dhcp"

var dhcpApplet = &dhcp.Applet
