// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build no_tc_redirect_tap

package builtin

var tcredirecttapApplet = &LeftOut
