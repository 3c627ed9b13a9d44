//go:build !no_ipvlan

package applets

import "cnibox/applets/ipvlan"

func init() { register(&ipvlan.Applet) }
