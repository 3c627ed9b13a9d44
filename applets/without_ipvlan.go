//go:build no_ipvlan

package applets

var ipvlanApplet = &leftOut
