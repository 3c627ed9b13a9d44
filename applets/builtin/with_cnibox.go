// Code generated from testdata/applets.golden; DO NOT EDIT.

package builtin

import "cnibox/applets/cnibox"

var cniboxApplet = &cnibox.Applet
