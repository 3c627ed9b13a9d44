// Go reads mountinfo and three files more for the processors that the control group allows,
// which means nothing to a process of two milliseconds.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command cnibox is every CNI plugin, and the runtime cni-exec, in one static
// binary: the name it is called by says which.
package main

import (
	"os"

	"cnibox/internal/process"
)

func main() { os.Exit(process.Run(false)) }
