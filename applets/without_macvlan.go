//go:build no_macvlan

package applets

var macvlanApplet = &leftOut
