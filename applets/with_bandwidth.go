//go:build !no_bandwidth

package applets

import "cnibox/applets/bandwidth"

var bandwidthApplet = &bandwidth.Applet
