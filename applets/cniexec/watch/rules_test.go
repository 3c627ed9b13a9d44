package watch

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/interrupt"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/nfttest"
	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/spec"
)

// A deleted part is judged once, a pause after its deletion at the earliest and two at the latest, and
// one of an attachment with which a verb is at work again after each pause. What no verb deletes is an
// event at once.
func TestJudge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var mu sync.Mutex
		var did []string
		note := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			did = append(did, time.Since(begin).String()+" "+what)
		}
		busy := 1
		w := &Watch{Lacking: func(deleted []nft.Part) (bool, []nft.Part) {
			note(strings.Repeat("part ", len(deleted)))
			if len(deleted) == 2 && busy > 0 {
				busy--
				return false, deleted[:1]
			}
			return time.Since(begin) > 10*time.Second, nil
		}}
		losses := []struct {
			at   time.Duration
			loss nft.Loss
		}{
			{time.Second, nft.Loss{Parts: make([]nft.Part, 1)}},
			{1500 * ms, nft.Loss{Parts: make([]nft.Part, 1)}},
			{1600 * ms, nft.Loss{Base: true, Parts: make([]nft.Part, 3)}},
			{20 * time.Second, nft.Loss{Parts: make([]nft.Part, 1)}},
		}
		next := func(ctx context.Context) (nft.Loss, error) {
			if len(losses) == 0 {
				<-ctx.Done()
				return nft.Loss{}, context.Cause(ctx)
			}
			l := losses[0]
			losses = losses[1:]
			time.Sleep(l.at - time.Since(begin))
			return l.loss, nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := w.watchRules(ctx, next, note); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		want := []string{"1.6s " + rulesLost, "3s part part ", "4s part ", "22s part ", "22s " + rulesLost}
		if !slices.Equal(did, want) {
			t.Errorf("got  %q\nwant %q", did, want)
		}
	})
}

// The watch reloads once for each loss, not for what its reload does, nor for what a DEL deletes.
func TestKernelReloadsOfRules(t *testing.T) {
	ns := kerneltest.NS(t)
	lock := filepath.Join(t.TempDir(), "lock")
	table := nft.Open(ns, nft.WithLock(lock))
	owner := spec.Attachment{Network: "demo", ContainerID: "c1", IfName: "eth0"}
	rebuild := func() {
		s := session.NewForMany().For(0, owner.Key(), nil).Leaving(func(err error) { t.Error(err) })
		defer s.Close()
		nft.Rebuild(s)
		err := nft.Open(ns, nft.WithLock(lock), nft.WithSession(s)).Update(t.Context(), func(x *nft.Tx) error {
			x.Masquerade(owner, netip.MustParsePrefix("10.1.0.2/24"))
			x.Allow(owner, netip.MustParseAddr("10.1.0.2"), "CNI-ADMIN")
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		s.Commit(t.Context())
	}
	rebuild()
	rules, err := nft.WatchRules(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer rules.Close()
	var alive atomic.Bool
	alive.Store(true)
	reloads, asked := make(chan string, 100), make(chan int, 100)
	w := &Watch{
		Reload: func(_ context.Context, why string) {
			if alive.Load() {
				rebuild()
			}
			reloads <- why
		},
		Lacking: func(deleted []nft.Part) (bool, []nft.Part) {
			missing, err := table.Missing(deleted)
			if err != nil {
				t.Error(err)
			}
			asked <- len(missing)
			return alive.Load() && len(missing) > 0, nil
		},
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	events, ended := make(chan string, mostCauses), make(chan error)
	go w.watchRules(ctx, rules.Next, func(why string) { offer(events, why) })
	go func() { ended <- w.reloadAfter(ctx, events) }()
	wantReload := func(want string) {
		t.Helper()
		if got := <-reloads; got != want {
			t.Fatalf("reload after %q, want %q", got, want)
		}
	}
	wantReload("the watch was started")
	for range 2 {
		nfttest.Load(t, ns, "flush ruleset")
		wantReload(rulesLost)
		offer(events, "nothing") // no event comes of what the reload does before it
		wantReload("nothing")

		nfttest.Load(t, ns, "flush map inet cnibox masq4") // by any program
		if n := <-asked; n == 0 {
			t.Error("nothing is missing")
		}
		wantReload(rulesLost)
		offer(events, "nothing")
		wantReload("nothing")

		alive.Store(false)
		if err := table.Update(t.Context(), func(x *nft.Tx) error { x.Release(owner); return nil }); err != nil {
			t.Fatal(err)
		}
		if n := <-asked; n == 0 {
			t.Error("nothing is missing after the release")
		}
		offer(events, "nothing") // no event comes of the release before it
		wantReload("nothing")
		alive.Store(true)
		rebuild()
	}
	if len(reloads) > 0 || len(asked) > 0 {
		t.Errorf("%d reloads and %d questions more", len(reloads), len(asked))
	}
	cancel(interrupt.Signal(unix.SIGTERM))
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
