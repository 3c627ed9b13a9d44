//go:build !no_flannel

package applets

import "cnibox/applets/flannel"

var flannelApplet = &flannel.Applet
