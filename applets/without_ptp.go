//go:build no_ptp

package applets

var ptpApplet = &leftOut
