//go:build !no_dhcp

package applets

import "cnibox/applets/dhcp"

func init() { register(&dhcp.Applet) }
