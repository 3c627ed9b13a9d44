// Command cnibox is every CNI plugin, and the runtime cni-exec, in one static
// binary: the name it is called by says which.
package main

import (
	"os"

	"github.com/cnibox/cnibox/applets"
)

func main() { os.Exit(applets.Main(false)) }
