// Package interrupt handles SIGTERM and SIGINT: they end the process at once, unless a change
// has begun that must be undone. Then they cancel its context, and the process ends after the undo.
// Its state is that of the process, as signals are.
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

// A Signal is the cause of a context that a signal has ended.
type Signal unix.Signal

// Error names the signal as kill(1) does.
func (s Signal) Error() string { return "ended by " + unix.SignalName(unix.Signal(s)) }

// grace is how long a process goes on after what it had begun is undone, to print its error.
const grace = 500 * time.Millisecond

// Undo is how long undoing takes at most after a signal, in [UndoContext]; longest is that of all of it, of
// a list and of the plugin in it, after which the process ends.
const (
	Undo    = 5 * time.Second
	longest = 3 * Undo
)

var state struct {
	sync.Mutex
	begun   int           // calls of Begin that are not done
	idle    chan struct{} // closed when begun is 0; nil: nothing waits for that
	passing bool
}

// Begin is called before the first change of what has to be undone if it does not succeed; done when
// it has succeeded or is undone. From a signal that ends the process Begin does not return.
func Begin() (done func()) {
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

// PassToCommand leaves signals to a command that runs, until stop is called.
func PassToCommand() (stop func()) {
	set := func(on bool) {
		state.Lock()
		state.passing = on
		state.Unlock()
	}
	set(true)
	return func() { set(false) }
}

// UndoContext is the context for undoing what a verb has done. It has the values of the verb's, which may
// have ended, and ends after limit; if a signal has ended the verb's, after [Undo].
func UndoContext(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if errors.As(context.Cause(ctx), new(Signal)) {
		limit = min(limit, Undo)
	}
	return context.WithTimeout(context.WithoutCancel(ctx), limit)
}

// Watch takes signals from c, to which they are notified, and cancels a context by the first one that
// does not end the process.
func Watch(c <-chan os.Signal, cancel context.CancelCauseFunc) {
	for s := range c {
		s := s.(unix.Signal) // all are, on Linux
		idle := first(s, cancel)
		if idle == nil {
			continue
		}
		select {
		case <-idle:
			time.Sleep(grace)
		case again := <-c:
			s = again.(unix.Signal)
		case <-time.After(longest):
		}
		end(s)
	}
}

// first ends the process if nothing is begun. Else it cancels the context and returns what is closed when
// that is done; nil: the signal is a command's.
func first(s unix.Signal, cancel context.CancelCauseFunc) (idle <-chan struct{}) {
	state.Lock()
	defer state.Unlock()
	switch {
	case state.passing:
		return nil
	case state.begun == 0:
		end(s)
	}
	cancel(Signal(s)) // before PassToCommand can return
	state.idle = make(chan struct{})
	return state.idle
}

// end lets the kernel do with the process what a signal does by default, which may be nothing: a shell
// without job control has SIGINT ignored in what it starts in the background.
func end(s unix.Signal) {
	signal.Reset(s)
	_ = unix.Kill(os.Getpid(), s)
	time.Sleep(grace) // until it is delivered
	os.Exit(128 + int(s))
}
