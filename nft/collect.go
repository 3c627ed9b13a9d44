package nft

import (
	"context"
	"slices"
	"sync"

	"cnibox/spec"
)

// A Collection has updates that are made in one transaction. The zero value is empty.
type Collection struct {
	// Rebuild makes the first commit refill the chains of the base rulesets, whatever they lack.
	Rebuild bool

	mu      sync.Mutex
	updates []collected
	number  int // of attachments
}

type collected struct {
	fn        func(*Tx) error
	then      func(context.Context, error) error
	collector collector
}

type collectionKey struct{}

// A collector is a collection with the attachment of the updates, and the function that reports the
// outcome of an update.
type collector struct {
	into   *Collection
	number int
	owner  spec.Attachment
	report func(lacked bool, err error)
}

// Collect returns a context in which updates of any [Table] are added to the collection; all must
// be of the host's network namespace and of one attachment. An update returns nil then.
// [Collection.Commit] reports its error, or whether the attachment lacked something that the update
// creates.
func (c *Collection) Collect(ctx context.Context, owner spec.Attachment, report func(lacked bool, err error)) context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.number++
	return context.WithValue(ctx, collectionKey{}, collector{c, c.number, owner, report})
}

// add adds an update if the context has a collection.
func add(ctx context.Context, fn func(*Tx) error, then func(context.Context, error) error) bool {
	col, ok := ctx.Value(collectionKey{}).(collector)
	if !ok {
		return false
	}
	col.into.mu.Lock()
	defer col.into.mu.Unlock()
	col.into.updates = append(col.into.updates, collected{fn, then, col})
	return true
}

// Commit makes the updates in the order of the calls of Collect, those of one attachment in their
// own order, and empties the collection. If one of them fails, those before and after it are made.
func (c *Collection) Commit(ctx context.Context, t *Table) {
	c.mu.Lock()
	updates := c.updates
	c.updates = nil
	c.mu.Unlock()
	slices.SortStableFunc(updates, func(a, b collected) int { return a.collector.number - b.collector.number })
	c.commit(ctx, t, updates)
}

// commit makes updates in one transaction, or, if that fails, each half of them in one.
func (c *Collection) commit(ctx context.Context, t *Table, updates []collected) {
	if len(updates) == 0 {
		return
	}
	var lacked map[string]bool
	err := t.updates(ctx, func(x *Tx) error {
		x.rebuild = c.Rebuild
		lacked = map[string]bool{} // of this try
		x.lacked = lacked
		return x.all(updates)
	})
	if half := len(updates) / 2; err != nil && half > 0 && ctx.Err() == nil {
		c.commit(ctx, t, updates[:half])
		c.commit(ctx, t, updates[half:])
		return
	}
	c.Rebuild = c.Rebuild && err != nil
	for _, u := range updates {
		err := u.then(ctx, err)
		u.collector.report(err == nil && lacked[u.collector.owner.Key()], err)
	}
}
