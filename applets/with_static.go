//go:build !no_static

package applets

import "cnibox/applets/static"

var staticApplet = &static.Applet
