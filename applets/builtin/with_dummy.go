// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build !no_dummy

package builtin

import "cnibox/applets/dummy"

var dummyApplet = &dummy.Applet
