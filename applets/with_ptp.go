//go:build !no_ptp

package applets

import "cnibox/applets/ptp"

func init() { register(&ptp.Applet) }
