// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build !no_firewall

package builtin

import "cnibox/applets/firewall"

var firewallApplet = &firewall.Applet
