//go:build no_portmap

package applets

var portmapApplet = &leftOut
