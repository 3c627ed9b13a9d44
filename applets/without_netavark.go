//go:build no_netavark

package applets

var netavarkApplet = &leftOut
