//go:build !no_macvlan

package applets

import "cnibox/applets/macvlan"

var macvlanApplet = &macvlan.Applet
