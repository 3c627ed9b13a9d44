// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build !no_vrf

package builtin

import "github.com/cnibox/cnibox/applets/vrf"

var vrfApplet = &vrf.Applet
