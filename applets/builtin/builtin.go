// Package builtin is the table of the programs that are linked: for each name of testdata/applets.golden with_NAME.go
// names its package, and a build with the tag no_NAME has without_NAME.go in its place. These files and table.go are
// generated from that list.
package builtin

import "github.com/cnibox/cnibox/applets/applet"

//go:generate go run ./generate ../../testdata/applets.golden

// LeftOut is in the place of what a tag leaves out.
var LeftOut applet.Applet
