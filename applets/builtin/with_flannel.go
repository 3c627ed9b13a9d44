// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build !no_flannel

package builtin

import "github.com/cnibox/cnibox/applets/flannel"

var flannelApplet = &flannel.Applet
