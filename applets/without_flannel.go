//go:build no_flannel

package applets

var flannelApplet = &leftOut
