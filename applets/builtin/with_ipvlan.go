// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build !no_ipvlan

package builtin

import "github.com/cnibox/cnibox/applets/ipvlan"

var ipvlanApplet = &ipvlan.Applet
