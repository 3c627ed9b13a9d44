//go:build !no_portmap

package applets

import "cnibox/applets/portmap"

var portmapApplet = &portmap.Applet
