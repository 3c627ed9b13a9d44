// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build !no_macvlan

package builtin

import "cnibox/applets/macvlan"

var macvlanApplet = &macvlan.Applet
