//go:build no_tuning

package applets

var tuningApplet = &leftOut
