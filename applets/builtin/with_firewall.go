// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build !no_firewall

package builtin

import "github.com/cnibox/cnibox/applets/firewall"

var firewallApplet = &firewall.Applet
