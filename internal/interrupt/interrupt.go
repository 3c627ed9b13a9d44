// Package interrupt handles SIGTERM and SIGINT: they end the process at once, unless a change
// has begun that must be undone. Then they cancel its context, and the process ends after the undo.
// The state of the package is global, since signals are for the whole process.
//
// Before [Expect] or [Begin] no handler is installed, and the kernel ends the process: a handler needs
// two threads, some 20 page faults.
package interrupt

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A Signal is the cause of a context that a signal has cancelled.
type Signal unix.Signal

// Error names the signal as kill(1) does.
func (s Signal) Error() string { return "ended by " + unix.SignalName(unix.Signal(s)) }

// farewell is the time that the process has after the undo to print its error and end; delivery the time
// that the kernel has to deliver the signal.
const (
	farewell = 5 * time.Second
	delivery = 500 * time.Millisecond
)

// Undo bounds one undo after a signal, see [UndoContext]. longest bounds all of them, of a list and of
// the plugin in it; then the process ends.
const (
	Undo    = 5 * time.Second
	longest = 3 * Undo
)

var state struct {
	cancel    context.CancelCauseFunc // nil: no handler is installed
	listening func() <-chan struct{}

	sync.Mutex
	begun   int           // calls of Begin that are not done
	idle    chan struct{} // closed when begun is 0; nil: nothing waits for that
	passing bool
}

// Cancels sets the function that cancels the context of the process. main calls it first; without it,
// as in tests, no signal is handled.
func Cancels(cancel context.CancelCauseFunc) {
	state.cancel = cancel
	state.listening = sync.OnceValue(func() <-chan struct{} {
		listening := make(chan struct{})
		go func() {
			c := make(chan os.Signal, 2)
			signal.Notify(c, unix.SIGINT, unix.SIGTERM)
			close(listening)
			watch(c)
		}()
		return listening
	})
}

// Expect begins to install the signal handler in the background. Callers that will call [Begin] call it
// early, since [signal.Notify] waits for two threads to start, which takes a sixth of the time of a short
// verb. The channel is closed when the handler is installed.
func Expect() <-chan struct{} {
	if state.cancel == nil {
		none := make(chan struct{})
		close(none)
		return none
	}
	return state.listening()
}

// Begin is called before the first of the changes that are undone after a failure; done is called when
// they have succeeded or are undone. If a signal is ending the process, Begin does not return.
func Begin() (done func()) {
	<-Expect()
	state.Lock()
	state.begun++
	state.Unlock()
	return sync.OnceFunc(func() {
		state.Lock()
		defer state.Unlock()
		if state.begun--; state.begun == 0 && state.idle != nil {
			close(state.idle)
			state.idle = nil
		}
	})
}

// PassToCommand makes this process ignore signals until stop is called: they are for a running command.
func PassToCommand() (stop func()) {
	<-Expect()
	set := func(on bool) {
		state.Lock()
		state.passing = on
		state.Unlock()
	}
	set(true)
	return func() { set(false) }
}

// UndoContext returns a context for the undo of a verb. It has the values of the verb's context, which may
// have ended, and the timeout limit; after a signal the timeout is at most [Undo].
func UndoContext(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if errors.As(context.Cause(ctx), new(Signal)) {
		limit = min(limit, Undo)
	}
	return context.WithTimeout(context.WithoutCancel(ctx), limit)
}

// watch handles the signals that arrive on c. The first one that does not end the process cancels the
// context; the process ends after the undo, at a second signal, or after longest.
func watch(c <-chan os.Signal) {
	for s := range c {
		s := s.(unix.Signal) // all are, on Linux
		idle := first(s)
		if idle == nil {
			continue
		}
		select {
		case <-idle:
			time.Sleep(farewell)
		case again := <-c:
			s = again.(unix.Signal)
		case <-time.After(longest):
		}
		end(s)
	}
}

// first ends the process if nothing has begun. Otherwise it cancels the context and returns a channel that
// is closed when all that has begun is done; nil: the signal is for a command.
func first(s unix.Signal) (idle <-chan struct{}) {
	state.Lock()
	defer state.Unlock()
	switch {
	case state.passing:
		return nil
	case state.begun == 0:
		end(s)
	}
	state.cancel(Signal(s)) // before PassToCommand can return
	state.idle = make(chan struct{})
	return state.idle
}

// end ends the process by the signal with its original action. If that is to ignore it, as for SIGINT in
// the background commands of a shell without job control, end exits. It is a variable for the test.
var end = func(s unix.Signal) {
	signal.Reset(s)
	_ = unix.Kill(os.Getpid(), s)
	time.Sleep(delivery)
	os.Exit(128 + int(s))
}
