// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build !no_ptp

package builtin

import "cnibox/applets/ptp"

var ptpApplet = &ptp.Applet
