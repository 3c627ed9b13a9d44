//go:build no_firewall

package applets

var firewallApplet = &leftOut
