//go:build !no_dhcp

package applets

import "cnibox/applets/dhcp"

var dhcpApplet = &dhcp.Applet
