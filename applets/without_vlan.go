//go:build no_vlan

package applets

var vlanApplet = &leftOut
