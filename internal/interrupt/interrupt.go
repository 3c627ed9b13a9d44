// Package interrupt handles SIGTERM and SIGINT: they end the process at once, unless a change
// has begun that must be undone. Then they cancel its context, and the process ends after the undo.
// Its state is that of the process, as signals are.
//
// Until something is begun signals are left to the kernel, which ends the process: taking them needs two
// threads, some 20 page faults.
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
	cancel    context.CancelCauseFunc // nil: signals are left to the kernel
	listening func() <-chan struct{}

	sync.Mutex
	begun   int           // calls of Begin that are not done
	idle    chan struct{} // closed when begun is 0; nil: nothing waits for that
	passing bool
}

// Cancels names what cancels the context of the process. Main calls it first; without it, as in tests,
// signals are left to the kernel.
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

// Expect is called by what is going to call [Begin]: signals are taken from the kernel soon, beside the
// caller, since [signal.Notify] waits for two threads to start, which is a sixth of the whole run of a
// short verb. The channel is closed when they are.
func Expect() <-chan struct{} {
	if state.cancel == nil {
		none := make(chan struct{})
		close(none)
		return none
	}
	return state.listening()
}

// Begin is called before the first change of what has to be undone if it does not succeed; done when
// it has succeeded or is undone. From a signal that ends the process Begin does not return.
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

// PassToCommand leaves signals to a command that runs, until stop is called.
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

// UndoContext is the context for undoing what a verb has done. It has the values of the verb's, which may
// have ended, and ends after limit; if a signal has ended the verb's, after [Undo].
func UndoContext(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if errors.As(context.Cause(ctx), new(Signal)) {
		limit = min(limit, Undo)
	}
	return context.WithTimeout(context.WithoutCancel(ctx), limit)
}

// watch takes signals from c, to which they are notified, and cancels the context by the first one that
// does not end the process.
func watch(c <-chan os.Signal) {
	for s := range c {
		s := s.(unix.Signal) // all are, on Linux
		idle := first(s)
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

// end lets the kernel do with the process what a signal does by default, which may be nothing: a shell
// without job control has SIGINT ignored in what it starts in the background.
func end(s unix.Signal) {
	signal.Reset(s)
	_ = unix.Kill(os.Getpid(), s)
	time.Sleep(grace) // until it is delivered
	os.Exit(128 + int(s))
}
