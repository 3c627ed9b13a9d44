//go:build !no_sbr

package applets

import "cnibox/applets/sbr"

func init() { register(&sbr.Applet) }
