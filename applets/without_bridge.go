//go:build no_bridge

package applets

var bridgeApplet = &leftOut
