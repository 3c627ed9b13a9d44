// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build !no_sbr

package builtin

import "github.com/cnibox/cnibox/applets/sbr"

var sbrApplet = &sbr.Applet
