// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build !no_tuning

package builtin

import "github.com/cnibox/cnibox/applets/tuning"

var tuningApplet = &tuning.Applet
