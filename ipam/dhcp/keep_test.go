package dhcp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A server answers the steps of keep, and records them with the fake time since the lease's start.
type server struct {
	answers func(s step, now time.Duration) (*Lease, error)
	did     []string
	at      []time.Duration
}

func (s *server) note(what string) {
	s.did, s.at = append(s.did, what), append(s.at, sinceBoot())
}

func (s *server) obtain(ctx context.Context, how step, _ *Lease, wait time.Duration) (*Lease, error) {
	s.note([...]string{"discover", "request", "renew", "rebind", "reboot"}[how])
	l, err := s.answers(how, sinceBoot())
	if errors.Is(err, errTimeout) {
		pause(ctx, wait)
	}
	return l, err
}

func (s *server) configure(l *Lease) (*Lease, error) {
	what := "keep the address"
	if l.Lapsed {
		what = "delete the address"
	}
	s.note(what)
	settled := *l
	settled.On = nil
	return &settled, nil
}

// lease returns a lease of one hour that began at a time.
func lease(start time.Duration) *Lease {
	l := &Lease{Address: netip.MustParsePrefix("10.9.0.10/24"), Server: []byte{10, 9, 0, 1}, Start: start}
	_ = l.times(3600, 0, 0) // T1 and T2 of 30 min and 52.5 min
	return l
}

// kept keeps a lease for a time, with a fake clock that starts with the boot, and returns what was
// asked.
func kept(t *testing.T, l *Lease, long time.Duration, answers func(s step, l *Lease, now time.Duration) (*Lease, error)) *server {
	t.Helper()
	was := sinceBoot
	s := &server{}
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		sinceBoot = func() time.Duration { return time.Since(begin) }
		defer func() { sinceBoot = was }()
		h := Resume(State{Leases: []*Lease{l}}, Settings{Timeout: 10 * time.Second, Pause: time.Minute, Log: func(string) {}}, discardStore{})
		s.answers = func(how step, now time.Duration) (*Lease, error) { return answers(how, l, now) }
		h.network = s
		h.Keep()
		time.Sleep(long)
		h.Stop()
	})
	return s
}

// phases returns the steps without repetitions.
func (s *server) phases() string { return strings.Join(slices.Compact(slices.Clone(s.did)), ", ") }

// within checks that all steps of a kind are between two times.
func (s *server) within(t *testing.T, what string, from, to time.Duration) {
	t.Helper()
	for i, at := range s.at {
		if s.did[i] == what && (at < from || at > to) {
			t.Errorf("%s at %s, want %s to %s", what, at, from, to)
		}
	}
}

const (
	t1, t2, life = 30 * time.Minute, 52*time.Minute + 30*time.Second, time.Hour
	early        = t1 / 32 // renewals are spread over it
)

// Without an answer, the lease's server is asked from T1, all servers from T2, and the address is
// deleted when the lease expires, to the second. Then a new lease is sought, at least each minute.
func TestKeepSilence(t *testing.T) {
	s := kept(t, lease(0), 2*time.Hour, func(_ step, l *Lease, now time.Duration) (*Lease, error) {
		old := *l
		old.Lapsed = now >= life
		return &old, errTimeout
	})
	if got, want := s.phases(), "renew, rebind, delete the address, discover"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	s.within(t, "renew", t1-early, t2)
	s.within(t, "rebind", t2, life)
	s.within(t, "delete the address", life, life)
	count := map[string]int{}
	for i, what := range s.did {
		count[what]++
		if gap := 2 * time.Minute; what == "discover" && s.at[i]-s.at[i-1] > gap {
			t.Errorf("a pause of %s before a DISCOVER", s.at[i]-s.at[i-1])
		}
		if gap := time.Minute; i > 0 && (what == "renew" || what == "rebind") && what == s.did[i-1] && s.at[i]-s.at[i-1] < gap {
			t.Errorf("%s after %s, want %s at least", what, s.at[i]-s.at[i-1], gap)
		}
	}
	if count["delete the address"] != 1 || count["renew"] < 2 || count["rebind"] < 2 || count["renew"]+count["rebind"] > 60 {
		t.Errorf("asked %v", count)
	}
}

// A server that answers is asked once for each half of the lease.
func TestKeepRenews(t *testing.T) {
	s := kept(t, lease(0), 10*t1+time.Second, func(_ step, _ *Lease, now time.Duration) (*Lease, error) { return lease(now), nil })
	if len(s.did) != 10 || s.phases() != "renew" {
		t.Errorf("got %q", s.did)
	}
	for i, at := range s.at {
		if n := time.Duration(i + 1); at > n*t1 || at < n*(t1-early) {
			t.Errorf("renewal %d at %s", i+1, at)
		}
	}
}

// Another server is asked after T2, and its lease is kept.
func TestKeepRebinds(t *testing.T) {
	s := kept(t, lease(0), t2+t1-2*early, func(how step, l *Lease, now time.Duration) (*Lease, error) {
		if how == rebind {
			return lease(now), nil
		}
		return l, errTimeout
	})
	if got := s.phases(); got != "renew, rebind" || s.at[len(s.at)-1] != t2 {
		t.Errorf("got %s, the last at %s", got, s.at[len(s.at)-1])
	}
}

// A NAK ends the lease at once: the address is deleted, and a new one sought at the same time.
func TestKeepRefused(t *testing.T) {
	s := kept(t, lease(0), t1+time.Second, func(how step, l *Lease, now time.Duration) (*Lease, error) {
		if how == discover {
			return lease(now), nil
		}
		return l, errRefused
	})
	if got := fmt.Sprint(s.did); got != "[renew delete the address discover]" || s.at[0] != s.at[1] || s.at[0] != s.at[2] {
		t.Errorf("got %s at %s", got, s.at)
	}
}

// After a restart, a lease that has run out meanwhile is confirmed at once, or its address deleted.
func TestKeepConfirms(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"confirmed": {nil, "reboot"},
		"silence":   {errTimeout, "reboot, delete the address, discover"},
		"refused":   {errRefused, "reboot, delete the address, discover"},
	} {
		t.Run(name, func(t *testing.T) {
			s := kept(t, lease(-2*life), time.Minute, func(how step, l *Lease, now time.Duration) (*Lease, error) {
				if tt.err == nil {
					return lease(now), nil
				}
				old := *l
				old.Lapsed = how == discover
				return &old, tt.err
			})
			if got := s.phases(); got != tt.want || s.at[0] != 0 {
				t.Errorf("got %s at %s, want %s", got, s.at, tt.want)
			}
		})
	}
}
