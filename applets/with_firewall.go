//go:build !no_firewall

package applets

import "cnibox/applets/firewall"

var firewallApplet = &firewall.Applet
