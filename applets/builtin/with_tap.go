// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build !no_tap

package builtin

import "cnibox/applets/tap"

var tapApplet = &tap.Applet
