//go:build no_static

package applets

var staticApplet = &leftOut
