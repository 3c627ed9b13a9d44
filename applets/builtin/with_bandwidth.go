// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build !no_bandwidth

package builtin

import "github.com/cnibox/cnibox/applets/bandwidth"

var bandwidthApplet = &bandwidth.Applet
