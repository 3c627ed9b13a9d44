//go:build no_bandwidth

package applets

var bandwidthApplet = &leftOut
