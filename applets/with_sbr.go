//go:build !no_sbr

package applets

import "cnibox/applets/sbr"

var sbrApplet = &sbr.Applet
