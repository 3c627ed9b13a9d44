//go:build no_dhcp

package applets

var dhcpApplet = &leftOut
