// Code generated from testdata/applets.golden; DO NOT EDIT.

//go:build !no_cni_exec

package builtin

import "github.com/cnibox/cnibox/applets/cniexec"

var cniexecApplet = &cniexec.Applet
