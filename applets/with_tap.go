//go:build !no_tap

package applets

import "cnibox/applets/tap"

var tapApplet = &tap.Applet
