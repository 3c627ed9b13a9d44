// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build !no_static

package builtin

import "github.com/cnibox/cnibox/applets/static"

var staticApplet = &static.Applet
