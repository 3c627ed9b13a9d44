// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build !no_macvlan

package builtin

import "github.com/cnibox/cnibox/applets/macvlan"

var macvlanApplet = &macvlan.Applet
