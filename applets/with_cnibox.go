package applets

import "cnibox/applets/cnibox"

func init() { register(&cnibox.Applet) }
