// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build no_firewall

package builtin

var firewallApplet = &LeftOut
