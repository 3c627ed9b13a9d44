//go:build !no_flannel

package applets

import "cnibox/applets/flannel"

func init() { register(&flannel.Applet) }
