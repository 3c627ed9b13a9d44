//go:build !no_cni_exec

package applets

import "cnibox/applets/cniexec"

var cniExecApplet = &cniexec.Applet
