// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build !no_bridge

package builtin

import "github.com/cnibox/cnibox/applets/bridge"

var bridgeApplet = &bridge.Applet
