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
	"runtime"
	"sync"
	"syscall"

	"cnibox/applets"
	"cnibox/applets/applet"
)

// quick is the verb that has nothing to undo, so that no signal needs to be watched for:
// runtimes ask it of every plugin. Arguments are for tools, which do not read the variable.
var quick = len(os.Args) == 1 && os.Getenv("CNI_COMMAND") == "VERSION"

func main() {
	ctx, cancel := context.WithCancelCause(context.Background())
	listening := make(chan struct{})
	if !quick {
		go endOnSignal(cancel, listening)
	}

	var args []string
	name := ""
	if len(os.Args) > 0 { // execve allows an empty argv
		name, args = os.Args[0], os.Args[1:]
	}
	os.Exit(applets.Run(ctx, name, applet.Process{
		Args:    args,
		Getenv:  os.Getenv,
		Environ: os.Environ(),
		Stdin:   os.Stdin,
		Stdout:  os.Stdout,
		Stderr:  os.Stderr,
		Threads: func() { reserveThreads(listening) },
	}))
}

// endOnSignal lets the applet undo its work at the first signal, which is the cause in its
// context; the second kills. It runs beside main because [signal.Notify] waits for two threads to
// start, a sixth of the whole run of a short verb.
func endOnSignal(cancel context.CancelCauseFunc, listening chan<- struct{}) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGINT, syscall.SIGTERM)
	close(listening)
	s := <-c
	signal.Stop(c)
	cancel(applet.EndedBy(s.(syscall.Signal)))
}

// spareThreads are for what blocks in the kernel beside main.
const spareThreads = 2

// reserveThreads makes all the threads that an ADD may need, and returns when they are there
// and idle. The runtime ends the process where it cannot make a thread (EAGAIN, by the limit
// of a control group or of the user), so that has to be before the first change. It needs
// few where one goroutine runs at a time, which is also faster: an ADD does one thing after
// another. The threads of [signal.Notify] are among them.
func reserveThreads(listening <-chan struct{}) {
	runtime.GOMAXPROCS(1)
	<-listening
	var there, gone sync.WaitGroup
	idle := make(chan struct{})
	for range spareThreads {
		there.Add(1)
		gone.Go(func() {
			runtime.LockOSThread()
			there.Done()
			<-idle
			runtime.UnlockOSThread()
		})
	}
	there.Wait()
	close(idle)
	gone.Wait()
}
