//go:build !no_loopback

package applets

import "cnibox/applets/loopback"

var loopbackApplet = &loopback.Applet
