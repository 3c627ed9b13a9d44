//go:build no_tap

package applets

var tapApplet = &leftOut
