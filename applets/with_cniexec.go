//go:build !no_cni_exec

package applets

import "cnibox/applets/cniexec"

func init() { register(&cniexec.Applet) }
