//go:build no_dummy

package applets

var dummyApplet = &leftOut
