//go:build !no_bridge

package applets

import "cnibox/applets/bridge"

var bridgeApplet = &bridge.Applet
