// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build !no_loopback

package builtin

import "cnibox/applets/loopback"

var loopbackApplet = &loopback.Applet
