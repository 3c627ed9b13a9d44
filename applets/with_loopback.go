//go:build !no_loopback

package applets

import "cnibox/applets/loopback"

func init() { register(&loopback.Applet) }
