// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build !no_dummy

package builtin

import "github.com/cnibox/cnibox/applets/dummy"

var dummyApplet = &dummy.Applet
