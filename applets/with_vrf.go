//go:build !no_vrf

package applets

import "cnibox/applets/vrf"

var vrfApplet = &vrf.Applet
