//go:build !no_portmap

package applets

import "cnibox/applets/portmap"

func init() { register(&portmap.Applet) }
