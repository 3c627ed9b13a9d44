// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build !no_tc_redirect_tap

package builtin

import "github.com/cnibox/cnibox/applets/tcredirecttap"

var tcredirecttapApplet = &tcredirecttap.Applet
