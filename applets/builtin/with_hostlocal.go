// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build !no_host_local

package builtin

import "github.com/cnibox/cnibox/applets/hostlocal"

var hostlocalApplet = &hostlocal.Applet
