//go:build !no_macvlan

package applets

import "cnibox/applets/macvlan"

func init() { register(&macvlan.Applet) }
