//go:build no_host_local

package applets

var hostLocalApplet = &leftOut
