//go:build !no_ptp

package applets

import "cnibox/applets/ptp"

var ptpApplet = &ptp.Applet
