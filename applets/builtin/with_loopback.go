// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build !no_loopback

package builtin

import "github.com/cnibox/cnibox/applets/loopback"

var loopbackApplet = &loopback.Applet
