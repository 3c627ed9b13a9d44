package nft

import (
	"context"
	"slices"
	"sync"

	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/spec"
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
	var j *joint // of the last try
	err := session.Recover(func() error {
		return t.updates(ctx, func(x *Tx) error {
			j = &joint{rebuild: c.rebuild, lacked: map[string]bool{}}
			x.joint = j
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
		if now == nil && err == nil && j.lacked[u.s.Key()] && (i == 0 || left[i-1].s.Key() != u.s.Key()) {
			u.s.Did("rules written")
		}
		u.s.Fail(now)
	}
}

// A joint has what the transaction of a session has besides the changes of its updates.
type joint struct {
	rebuild  bool                     // refill the base rulesets even if they are of this version
	lacked   map[string]bool          // keys of the owners that lacked something of what the updates put
	releases map[Kind]map[string]bool // owners by kind, see releaseLater; nil: of one attachment, released at once
}

// all makes the changes of the updates.
func (x *Tx) all(updates []update) error {
	first := updates[0].s.Key()
	if slices.ContainsFunc(updates, func(u update) bool { return u.s.Key() != first }) {
		x.joint.releases = map[Kind]map[string]bool{}
	}
	for _, u := range updates {
		x.old.addrs = nil
		if err := u.fn(x); err != nil {
			return err
		}
	}
	x.releaseTogether()
	return nil
}

// releaseLater defers a Release to releaseTogether, if many attachments are released in one
// transaction; false: the caller drops the elements at once.
func (x *Tx) releaseLater(o spec.Attachment, kinds []Kind) bool {
	if x.joint == nil || x.joint.releases == nil || len(kinds) == 0 {
		return false
	}
	for _, k := range kinds {
		if x.joint.releases[k] == nil {
			x.joint.releases[k] = map[string]bool{}
		}
		x.joint.releases[k][o.Key()] = true
	}
	return true
}

// releaseTogether drops the elements of deferred releases and reads each set once for all owners.
// Elements that are put later stay.
func (x *Tx) releaseTogether() {
	if x.joint == nil || len(x.joint.releases) == 0 {
		return
	}
	owners := x.joint.releases
	x.joint.releases = map[Kind]map[string]bool{}
	for k := KindMasquerade; k <= KindAdverts; k++ {
		if owned := owners[k]; owned != nil {
			x.drop([]Kind{k}, func(c []byte) bool { return owned[string(c[:keyLen])] })
		}
	}
}

func (x *Tx) rebuilds() bool { return x.joint != nil && x.joint.rebuild }

// lackedBy records the owners of the planned elements that want selects.
func (x *Tx) lackedBy(want func(*change) bool) {
	for _, ch := range x.changes {
		if ch.assigned() && want(ch) {
			x.joint.lacked[ch.new.OwnerKey()] = true
		}
	}
}

// noteFlushed is lackedBy for a table whose chains have lost rules, as by nft flush chain.
func (x *Tx) noteFlushed(table byte, chains []installedChain) error {
	rules, err := x.s.rulesOf(table, TableName, "")
	if err != nil {
		return err
	}
	lost := map[string]int{} // by chain
	for _, c := range chainsOf(table) {
		lost[c.name] = len(c.rules)
	}
	for _, c := range chains {
		if want := x.chainNamed(c.name); table == inet && want.rules != nil {
			lost[c.name] = len(want.rules)
		}
	}
	for i := range rules {
		lost[rules[i].chain]--
	}
	for _, n := range lost {
		if n > 0 {
			x.lackedBy(func(ch *change) bool { return ch.set.table == table })
			break
		}
	}
	return nil
}
