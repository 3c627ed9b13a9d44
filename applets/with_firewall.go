//go:build !no_firewall

package applets

import "cnibox/applets/firewall"

func init() { register(&firewall.Applet) }
