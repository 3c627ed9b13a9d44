//go:build no_sbr

package applets

var sbrApplet = &leftOut
