//go:build !no_ipvlan

package applets

import "cnibox/applets/ipvlan"

var ipvlanApplet = &ipvlan.Applet
