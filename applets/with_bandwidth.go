//go:build !no_bandwidth

package applets

import "cnibox/applets/bandwidth"

func init() { register(&bandwidth.Applet) }
