//go:build !no_host_local

package applets

import "cnibox/applets/hostlocal"

var hostLocalApplet = &hostlocal.Applet
