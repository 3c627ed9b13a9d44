//go:build !no_vlan

package applets

import "cnibox/applets/vlan"

func init() { register(&vlan.Applet) }
