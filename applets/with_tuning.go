//go:build !no_tuning

package applets

import "cnibox/applets/tuning"

var tuningApplet = &tuning.Applet
