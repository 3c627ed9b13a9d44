//go:build !no_dummy

package applets

import "cnibox/applets/dummy"

var dummyApplet = &dummy.Applet
