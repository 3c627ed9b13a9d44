package applets

import "cnibox/applets/cnibox"

var cniboxApplet = &cnibox.Applet
