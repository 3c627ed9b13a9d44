// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build !no_tap

package builtin

import "github.com/cnibox/cnibox/applets/tap"

var tapApplet = &tap.Applet
