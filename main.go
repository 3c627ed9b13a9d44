// Go reads mountinfo and three files more for the processors that the control group allows,
// which means nothing to a process of two milliseconds.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command cnibox is every CNI plugin, and the runtime cni-exec, in one static
// binary: the name it is called by says which.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"cnibox/applets"
)

// quick is the verb that has nothing to undo, so that no signal needs to be watched for:
// runtimes ask it of every plugin. Arguments are for tools, which do not read the variable.
var quick = len(os.Args) == 1 && os.Getenv("CNI_COMMAND") == "VERSION"

func main() {
	ctx, cancel := context.WithCancelCause(context.Background())
	if !quick {
		go endOnSignal(cancel)
	}

	var args []string
	name := ""
	if len(os.Args) > 0 { // execve allows an empty argv
		name, args = os.Args[0], os.Args[1:]
	}
	os.Exit(applets.Run(ctx, name, applets.Process{
		Args:    args,
		Getenv:  os.Getenv,
		Environ: os.Environ(),
		Stdin:   os.Stdin,
		Stdout:  os.Stdout,
		Stderr:  os.Stderr,
	}))
}

// endOnSignal lets the applet undo its work at the first signal, which is the cause in its
// context; the second kills. It runs beside main because [signal.Notify] waits for two threads to
// start, a sixth of the whole run of a short verb.
func endOnSignal(cancel context.CancelCauseFunc) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGINT, syscall.SIGTERM)
	s := <-c
	signal.Stop(c)
	cancel(applets.EndedBy(s.(syscall.Signal)))
}
