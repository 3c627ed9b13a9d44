//go:build !no_tuning

package applets

import "cnibox/applets/tuning"

func init() { register(&tuning.Applet) }
