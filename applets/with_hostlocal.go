//go:build !no_host_local

package applets

import "cnibox/applets/hostlocal"

func init() { register(&hostlocal.Applet) }
