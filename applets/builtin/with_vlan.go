// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build !no_vlan

package builtin

import "github.com/cnibox/cnibox/applets/vlan"

var vlanApplet = &vlan.Applet
