package session_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/session"
)

// key is the key of a question.
type key string

// A session for many attachments asks until there is an answer, and remembers that until Forget; one for a single attachment
// asks each time, as does none.
func TestAsk(t *testing.T) {
	many, one := session.NewForMany(), session.New()
	for name, tt := range map[string]struct {
		s      *session.Session
		forget bool
		asked  int
	}{"one": {one, false, 3}, "none": {nil, false, 3}, "many": {many, false, 2}, "another goroutine": {many.Branch(), true, 2}, "an attachment": {many.For(0, "a", nil), true, 2}} {
		asked := 0
		ask := func(at key) (int, error) {
			return session.Ask(tt.s, at, func() (int, error) {
				if asked++; asked == 1 {
					return 0, unix.EAGAIN
				}
				return asked, nil
			})
		}
		if _, err := ask(key(name)); !errors.Is(err, unix.EAGAIN) {
			t.Errorf("%s: got %v", name, err)
		}
		for range 2 {
			if got, err := ask(key(name)); err != nil || got != asked {
				t.Errorf("%s: got %d, %v", name, got, err)
			}
		}
		if asked != tt.asked {
			t.Errorf("%s: asked %d times, want %d", name, asked, tt.asked)
		}
		if !tt.forget {
			continue
		}
		many.Forget()
		if _, err := ask(key(name)); err != nil || asked != tt.asked+1 {
			t.Errorf("%s: asked %d times after Forget, %v", name, asked, err)
		}
	}
	done := 0
	for range 3 {
		if err := session.Once(many, key("once"), func() error { done++; return nil }); err != nil {
			t.Error(err)
		}
	}
	if done != 1 {
		t.Errorf("done %d times", done)
	}
}

// A change is a kind of change: the numbers that are left.
type change struct {
	left  []int
	made  [][]int
	again bool // making it leaves another one
}

func (c *change) Take(context.Context, *session.Session) (func(), bool) {
	left := c.left
	c.left = nil
	if left == nil {
		return nil, false
	}
	return func() {
		if c.made = append(c.made, left); c.again {
			c.left, c.again = []int{9}, false
		}
	}, false
}

func (c *change) Discard() { c.left = nil }

// Commit makes what was left, and what that leaves. The rest of an attachment is done afterwards, unless something of it
// has failed. What Keep has opened stays open until then.
func TestCommit(t *testing.T) {
	verb := session.New()
	var errs []error
	var did []string
	of := func(name string) *session.Session {
		return verb.For(0, name, func(text string) { did = append(did, name+" "+text) }).Leaving(func(err error) { errs = append(errs, err) })
	}
	a, b, c := of("a"), of("b"), of("c")
	session.Left[change](a).left = []int{1}
	session.Left[change](b).left = append(session.Left[change](b).left, 2)
	session.Left[change](a).again = true
	var events []string
	for _, s := range []*session.Session{a, b} {
		_, done, err := session.Keep(s, key("lock"), func() (string, error) { events = append(events, "open"); return "lock", nil },
			func(string) { events = append(events, "close") })
		if err != nil {
			t.Fatal(err)
		}
		done()
	}
	for name, s := range map[string]*session.Session{"a": a, "b": b} {
		s.Last(func(context.Context) error { events = append(events, name); return nil })
	}
	c.Last(func(context.Context) error { panic("odd") })
	a.Did("made")
	b.Fail(unix.EBUSY)
	b.Fail(nil)
	verb.Commit(t.Context())
	if made := session.Left[change](verb).made; !slices.EqualFunc(made, [][]int{{1, 2}, {9}}, slices.Equal) {
		t.Errorf("made %v", made)
	}
	if want := []string{"open", "a", "close"}; !slices.Equal(events, want) {
		t.Errorf("got %v, want %v", events, want)
	}
	if len(errs) != 2 || !errors.Is(errs[0], unix.EBUSY) || errs[1].Error() != "panic: odd" || !slices.Equal(did, []string{"a made"}) {
		t.Errorf("errors %v, did %v", errs, did)
	}
	session.Left[change](a).left = []int{3}
	a.Last(func(context.Context) error { t.Error("done after Discard"); return nil })
	verb.Discard()
	verb.Commit(t.Context())
	if made := session.Left[change](verb).made; len(made) != 2 {
		t.Errorf("made after Discard: %v", made)
	}
}

// An ended context ends what is left, with its cause.
func TestCommitEnded(t *testing.T) {
	verb := session.New()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(unix.EINTR)
	var errs []error
	s := verb.For(0, "a", nil).Leaving(func(err error) { errs = append(errs, err) })
	s.Last(func(context.Context) error { t.Error("done"); return nil })
	verb.Commit(ctx)
	if len(errs) != 1 || !errors.Is(errs[0], unix.EINTR) {
		t.Errorf("got %v", errs)
	}
}

// Together commits by itself, unless changes are left for another commit. What is not left is closed at once.
func TestTogether(t *testing.T) {
	verb := session.New().For(0, "a", nil)
	var inner *change
	err := verb.Together(t.Context(), func(s *session.Session) error {
		if !s.Leaves() || verb.Leaves() || s.AtOnce().Leaves() {
			t.Error("not left")
		}
		inner = session.Left[change](s)
		inner.left = []int{1}
		s.Last(func(context.Context) error { return unix.EIO })
		return s.Together(t.Context(), func(same *session.Session) error {
			if same != s {
				t.Error("another session")
			}
			return unix.EACCES
		})
	})
	if !errors.Is(err, unix.EIO) || !errors.Is(err, unix.EACCES) || len(inner.made) != 1 || session.Left[change](verb) == inner {
		t.Errorf("got %v, made %v", err, inner.made)
	}
	closed := 0
	_, done, err := session.Keep(verb, key("lock"), func() (int, error) { return 0, nil }, func(int) { closed++ })
	if done(); err != nil || closed != 1 {
		t.Errorf("%v, closed %d times", err, closed)
	}
}

// There is one socket for each namespace and protocol. Those of an attachment are closed with it, those on the host with the
// goroutine's session.
func TestKernelConn(t *testing.T) {
	ns, err := netns.Open(kerneltest.NSPath(t, kerneltest.NS(t)))
	if err != nil {
		t.Fatal(err)
	}
	verb := session.New()
	of := verb.For(0, "a", nil)
	of.Own(ns)
	if of.NS(ns.Path()) != ns || of.NS("/other") != nil {
		t.Error("it is not the attachment's namespace")
	}
	branch := verb.Branch()
	open := func(s *session.Session, at *netns.NS) (first interface{ Close() error }) {
		t.Helper()
		for range 2 {
			c, err := s.Conn(at, unix.NETLINK_ROUTE)
			if err != nil {
				t.Fatal(err)
			}
			if first != nil && first != c {
				t.Error("another socket")
			}
			first = c
		}
		return first
	}
	inside, host, other := open(of, ns), open(of, netns.Host()), open(branch, netns.Host())
	if inside == host || host == other || host != open(verb.For(1, "b", nil), netns.Host()) {
		t.Error("not a socket for each place")
	}
	want := func(what string, c interface{ Close() error }, closed bool) {
		t.Helper()
		if err := c.Close(); (err != nil) != closed {
			t.Errorf("%s: closed %t, want %t", what, err != nil, closed)
		}
	}
	if err := of.Close(); err != nil || ns.FD() >= 0 {
		t.Errorf("the namespace is open: %v", err)
	}
	want("inside", inside, true)
	if err := branch.Close(); err != nil {
		t.Error(err)
	}
	want("of another goroutine", other, true)
	want("on the host", host, false)
	of.Own(nil)
}

// What is made aside is made at the same time as the others.
func TestCommitAside(t *testing.T) {
	verb := session.New()
	of := verb.For(0, "a", nil).Leaving(func(err error) { t.Error(err) })
	meet := make(chan bool)
	session.Left[sender](of).meet = meet
	session.Left[receiver](of).meet = meet
	verb.Commit(t.Context())
	if session.Left[sender](of).meet != nil || session.Left[receiver](of).meet != nil {
		t.Error("not made")
	}
}

// A sender and a receiver wait for each other.
type sender struct{ meet chan bool }

func (c *sender) Take(context.Context, *session.Session) (func(), bool) {
	meet := c.meet
	if c.meet = nil; meet == nil {
		return nil, false
	}
	return func() { meet <- true }, true
}

func (*sender) Discard() {}

type receiver struct{ meet chan bool }

func (c *receiver) Take(context.Context, *session.Session) (func(), bool) {
	meet := c.meet
	if c.meet = nil; meet == nil {
		return nil, false
	}
	return func() { <-meet }, false
}

func (*receiver) Discard() {}
