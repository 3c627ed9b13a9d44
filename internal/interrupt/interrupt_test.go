package interrupt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// signalled runs test in a process that handles signals, and returns what happens to it, and when.
// The clock is fake.
func signalled(t *testing.T, test func(ctx context.Context, send func(unix.Signal))) (did []string) {
	t.Helper()
	was := end
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		note := func(what any) { did = append(did, fmt.Sprint(time.Since(begin), " ", what)) }
		ctx, cancel := context.WithCancelCause(t.Context())
		listening, ended, signals := make(chan struct{}), make(chan struct{}), make(chan os.Signal, 2)
		close(listening)
		state.cancel = func(cause error) { note(cause); cancel(cause) }
		state.listening = func() <-chan struct{} { return listening }
		state.begun, state.idle, state.passing = 0, nil, false
		end = func(s unix.Signal) {
			note("end: " + unix.SignalName(s))
			runtime.Goexit() // as the end of the process, it does not return
		}
		defer func() { end, state.cancel, state.listening = was, nil, nil }()
		go func() { defer close(ended); watch(signals) }()
		test(ctx, func(s unix.Signal) {
			select {
			case signals <- s:
			case <-ended: // the process
			}
			synctest.Wait()
		})
		time.Sleep(time.Hour)
		close(signals)
		<-ended
	})
	return did
}

func TestSignals(t *testing.T) {
	type sender = func(unix.Signal)
	for name, tt := range map[string]struct {
		test func(ctx context.Context, send sender)
		want []string
	}{
		"nothing has begun": {func(_ context.Context, send sender) {
			send(unix.SIGTERM)
		}, []string{"0s end: SIGTERM"}},
		"all is done": {func(_ context.Context, send sender) {
			Begin()()
			time.Sleep(time.Second)
			send(unix.SIGINT)
		}, []string{"1s end: SIGINT"}},
		"an undo": {func(_ context.Context, send sender) {
			done := Begin()
			send(unix.SIGTERM)
			time.Sleep(3 * time.Second)
			done()
		}, []string{"0s ended by SIGTERM", "8s end: SIGTERM"}},
		"two undos": {func(_ context.Context, send sender) {
			one, two := Begin(), Begin()
			send(unix.SIGTERM)
			time.Sleep(time.Second)
			one()
			one() // counts once
			time.Sleep(time.Second)
			two()
		}, []string{"0s ended by SIGTERM", "7s end: SIGTERM"}},
		"an endless undo": {func(_ context.Context, send sender) {
			Begin()
			send(unix.SIGTERM)
		}, []string{"0s ended by SIGTERM", "15s end: SIGTERM"}},
		"another signal": {func(_ context.Context, send sender) {
			Begin()
			send(unix.SIGTERM)
			time.Sleep(2 * time.Second)
			send(unix.SIGINT)
		}, []string{"0s ended by SIGTERM", "2s end: SIGINT"}},
		"a command": {func(_ context.Context, send sender) {
			defer Begin()()
			stop := PassToCommand()
			send(unix.SIGTERM)
			send(unix.SIGINT)
			time.Sleep(time.Minute)
			stop()
		}, nil},
		"after a command": {func(_ context.Context, send sender) {
			PassToCommand()()
			send(unix.SIGTERM)
		}, []string{"0s end: SIGTERM"}},
		"the cause": {func(ctx context.Context, send sender) {
			defer Begin()()
			send(unix.SIGINT)
			if cause := context.Cause(ctx); !errors.Is(cause, Signal(unix.SIGINT)) {
				t.Errorf("cause %v", cause)
			}
		}, []string{"0s ended by SIGINT", "5s end: SIGINT"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := signalled(t, tt.test); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// The undo has the timeout of the verb, but after a signal not more than Undo.
func TestUndoContext(t *testing.T) {
	for _, tt := range []struct {
		cause       error
		limit, want time.Duration
	}{
		{nil, time.Minute, time.Minute},
		{errors.New("a timeout"), time.Minute, time.Minute},
		{Signal(unix.SIGTERM), time.Minute, Undo},
		{fmt.Errorf("add: %w", Signal(unix.SIGTERM)), time.Minute, Undo},
		{Signal(unix.SIGTERM), time.Second, time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			type key struct{}
			verb, cancel := context.WithCancelCause(context.WithValue(t.Context(), key{}, "value"))
			if tt.cause != nil {
				cancel(tt.cause)
			}
			begin := time.Now()
			ctx, stop := UndoContext(verb, tt.limit)
			defer stop()
			<-ctx.Done()
			if took := time.Since(begin); took != tt.want || ctx.Value(key{}) != "value" || ctx.Err() != context.DeadlineExceeded {
				t.Errorf("after %v, limit %s: ended after %s by %v, want %s", tt.cause, tt.limit, took, ctx.Err(), tt.want)
			}
			cancel(nil)
		})
	}
}
