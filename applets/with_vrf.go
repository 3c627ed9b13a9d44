//go:build !no_vrf

package applets

import "cnibox/applets/vrf"

func init() { register(&vrf.Applet) }
