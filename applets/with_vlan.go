//go:build !no_vlan

package applets

import "cnibox/applets/vlan"

var vlanApplet = &vlan.Applet
