//go:build no_cni_exec

package applets

var cniExecApplet = &leftOut
