//go:build !no_static

package applets

import "cnibox/applets/static"

func init() { register(&static.Applet) }
