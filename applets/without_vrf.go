//go:build no_vrf

package applets

var vrfApplet = &leftOut
