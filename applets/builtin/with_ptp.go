// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build !no_ptp

package builtin

import "github.com/cnibox/cnibox/applets/ptp"

var ptpApplet = &ptp.Applet
