package nft

import (
	"context"
	"slices"
	"sync"

	"github.com/cnibox/cnibox/internal/session"
)

// rules are the updates of the host's rule set that a session has left for its end. They are made in one transaction.
type rules struct {
	rebuild bool // until a transaction has succeeded

	mu   sync.Mutex
	left []update
}

// An update is what [Table.UpdateThen] got.
type update struct {
	t    *Table
	s    *session.Session
	fn   func(*Tx) error
	then func(context.Context, error) error
}

// Rebuild makes the next transaction at the end of a session refill the chains of the base rulesets, whatever they lack.
func Rebuild(s *session.Session) { session.Left[rules](s).rebuild = true }

func (c *rules) leave(u update) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = append(c.left, u)
}

// Take is that of a [session.Change]. The updates are made in the order of the attachments, those of one in their
// own order. If one of them fails, those before and after it are made.
func (c *rules) Take(ctx context.Context, s *session.Session) (do func(), aside bool) {
	c.mu.Lock()
	left := c.left
	c.left = nil
	c.mu.Unlock()
	if len(left) == 0 {
		return nil, false
	}
	slices.SortStableFunc(left, func(a, b update) int { return a.s.Order() - b.s.Order() })
	t := Open(left[0].t.ns, WithSession(s), WithLock(left[0].t.lock)) // the others are the same
	return func() { c.commit(ctx, t, left) }, false
}

// Discard is that of a [session.Change].
func (c *rules) Discard() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = nil
}

// commit makes updates in one transaction, or, if that fails, each half of them in one.
func (c *rules) commit(ctx context.Context, t *Table, left []update) {
	var lacked map[string]bool
	err := session.Recover(func() error {
		return t.updates(ctx, func(x *Tx) error {
			x.rebuild = c.rebuild
			lacked = map[string]bool{} // of this try
			x.lacked = lacked
			return x.all(left)
		})
	})
	if half := len(left) / 2; err != nil && half > 0 && ctx.Err() == nil {
		c.commit(ctx, t, left[:half])
		c.commit(ctx, t, left[half:])
		return
	}
	c.rebuild = c.rebuild && err != nil
	for i, u := range left {
		now := u.then(ctx, err)
		if now == nil && err == nil && lacked[u.s.Key()] && (i == 0 || left[i-1].s.Key() != u.s.Key()) {
			u.s.Did("rules written")
		}
		u.s.Fail(now)
	}
}
