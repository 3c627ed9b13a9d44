package applets

import "cnibox/applets/cniexec"

func init() { register(&cniexec.Applet) }
