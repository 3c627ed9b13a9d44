//go:build !no_bridge

package applets

import "cnibox/applets/bridge"

func init() { register(&bridge.Applet) }
