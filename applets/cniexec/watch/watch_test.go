package watch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/interrupt"
)

const ms = time.Millisecond

// An event comes some time after the start of the watch.
type event struct {
	at  time.Duration
	why string
}

// every returns events at regular intervals, from the first time to the last.
func every(interval, from, to time.Duration) (all []event) {
	for at := from; at <= to; at += interval {
		all = append(all, event{at, "flood"})
	}
	return all
}

// watched runs a watch for ten minutes of fake time, and returns what it has done, and when.
// Everything is in one bubble: its clock stands still while a goroutine has something to do.
func watched(t *testing.T, w *Watch, events []event, reload func(context.Context)) (did []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		note := func(what string) { did = append(did, fmt.Sprintf("%s %s", time.Since(begin), what)) }
		running := false
		w.Reload = func(ctx context.Context, why string) {
			if running {
				t.Errorf("%s: two reloads at once", why)
			}
			running = true
			note(why)
			if reload != nil {
				reload(ctx)
			}
			if ctx.Err() != nil {
				note("ended")
			}
			running = false
		}
		if w.Every != nil {
			w.Every = func(context.Context) { note("every") }
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		queue, ended := make(chan string, mostCauses), make(chan error)
		go func() { ended <- w.reloadAfter(ctx, queue) }()
		for _, e := range events {
			time.Sleep(e.at - time.Since(begin))
			offer(queue, e.why)
		}
		time.Sleep(10*time.Minute - time.Since(begin))
		cancel(interrupt.Signal(unix.SIGTERM))
		if err := <-ended; err != nil {
			t.Errorf("after a signal: %v", err)
		}
	})
	return did
}

func TestReloads(t *testing.T) {
	takes := func(d time.Duration) func(context.Context) {
		return func(ctx context.Context) { sleep(ctx, d) }
	}
	for name, tt := range map[string]struct {
		events []event
		reload func(context.Context)
		want   []string // after the first reload
	}{
		"no event":      {},
		"an event":      {events: []event{{time.Second, "a"}}, want: []string{"1.05s a"}},
		"two events":    {events: []event{{time.Second, "a"}, {2 * time.Second, "b"}}, want: []string{"1.05s a", "2.05s b"}},
		"a burst":       {events: []event{{1000 * ms, "a"}, {1049 * ms, "b"}, {1098 * ms, "c"}}, want: []string{"1.148s a; b; c"}},
		"two bursts":    {events: []event{{1000 * ms, "a"}, {1049 * ms, "b"}, {1100 * ms, "c"}}, want: []string{"1.099s a; b", "1.15s c"}},
		"one cause":     {events: []event{{1000 * ms, "a"}, {1010 * ms, "a"}, {1020 * ms, "b"}, {1030 * ms, "a"}}, want: []string{"1.08s a; b"}},
		"many causes":   {events: []event{{1000 * ms, "a"}, {1010 * ms, "b"}, {1020 * ms, "c"}, {1030 * ms, "d"}}, want: []string{"1.08s a; b; c"}},
		"no end of it":  {events: every(40*ms, time.Second, 1900*ms), want: []string{"1.25s flood", "1.53s flood", "1.81s flood", "1.93s flood"}},
		"while it runs": {events: []event{{1000 * ms, "a"}, {1100 * ms, "b"}, {1200 * ms, "c"}}, reload: takes(400 * ms), want: []string{"1.05s a", "1.45s b; c"}},
		// The reload from 1.05 s hangs. From the end of the next burst on, it has waitLimit.
		"it hangs": {events: []event{{1000 * ms, "a"}, {2000 * ms, "b"}}, reload: takes(time.Hour), want: []string{"1.55s ended", "1.55s a", "2.55s ended", "2.55s b", "10m0s ended"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := watched(t, &Watch{}, tt.events, tt.reload)
			if want := append([]string{"0s the watch was started"}, tt.want...); !slices.Equal(got, want) {
				t.Errorf("got  %q\nwant %q", got, want)
			}
		})
	}
}

// Events that came before the first reload are covered by it; of more events than the queue takes,
// the others are dropped, and none waits.
func TestEarlierEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := make(chan string, mostCauses)
		for _, why := range []string{"a", "b", "c", "d"} {
			offer(queue, why)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		reloads, lost := 0, errors.New("no notifications")
		w := &Watch{Reload: func(_ context.Context, why string) {
			if reloads++; why != "the watch was started; a; b" {
				t.Errorf("reload after %q", why)
			}
		}}
		time.AfterFunc(time.Hour, func() { cancel(lost) })
		if err := w.reloadAfter(ctx, queue); !errors.Is(err, lost) || reloads != 1 {
			t.Errorf("got %v after %d reloads", err, reloads)
		}
	})
}

// Every is called each minute without an event, and not while a reload runs.
func TestEvery(t *testing.T) {
	for name, tt := range map[string]struct {
		reload time.Duration
		events []event
		want   []string
	}{
		"a short reload": {0, []event{{150 * time.Second, "a"}}, []string{"1m0s every", "2m0s every", "2m30.05s a", "3m30.05s every", "4m30.05s every"}},
		"a long reload":  {90 * time.Second, nil, []string{"2m0s every", "3m0s every", "4m0s every", "5m0s every"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := watched(t, &Watch{Every: func(context.Context) {}}, tt.events, func(ctx context.Context) { sleep(ctx, tt.reload) })
			want := append([]string{"0s the watch was started"}, tt.want...)
			if got = got[:min(len(got), len(want))]; !slices.Equal(got, want) {
				t.Errorf("got  %q\nwant %q", got, want)
			}
		})
	}
}
