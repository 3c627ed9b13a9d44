// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build !no_flannel

package builtin

import "cnibox/applets/flannel"

var flannelApplet = &flannel.Applet
