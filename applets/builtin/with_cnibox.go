// Code generated from testdata/applets.golden; DO NOT EDIT.

package builtin

import "github.com/cnibox/cnibox/applets/cnibox"

var cniboxApplet = &cnibox.Applet
