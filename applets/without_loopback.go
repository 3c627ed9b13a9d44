//go:build no_loopback

package applets

var loopbackApplet = &leftOut
