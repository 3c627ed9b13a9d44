//go:build !no_tap

package applets

import "cnibox/applets/tap"

func init() { register(&tap.Applet) }
