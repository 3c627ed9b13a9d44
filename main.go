// Command cnibox is every CNI plugin, and the runtime cni-exec, in one static
// binary: the name it is called by says which.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"cnibox/applets"
)

// quick is the verb that enters no namespace and has nothing to undo, so that what
// follows from either can be left out, a tenth of its time: runtimes ask it of every
// plugin. Arguments are for tools, which do not read the variable.
var quick = len(os.Args) == 1 && os.Getenv("CNI_COMMAND") == "VERSION"

// The first thread must not be one that is thrown away, with mounts of its own or in
// another namespace: it cannot end, and /proc/self is its view.
func init() {
	if !quick {
		runtime.LockOSThread()
	}
}

func main() {
	ctx, cancel := context.WithCancel(context.Background())
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

// endOnSignal lets the applet undo its work at the first signal; the second
// kills. It runs beside main because [signal.Notify] waits for two threads to
// start, a sixth of the whole run of a short verb.
func endOnSignal(cancel context.CancelFunc) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGINT, syscall.SIGTERM)
	<-c
	signal.Stop(c)
	cancel()
}
