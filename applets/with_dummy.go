//go:build !no_dummy

package applets

import "cnibox/applets/dummy"

func init() { register(&dummy.Applet) }
