package nft

import (
	"context"
	"sync"
)

// A Collection is updates that are made together, in one transaction. The zero value is empty.
type Collection struct {
	mu      sync.Mutex
	updates []collected
	rebuilt bool
}

// A collected is one update.
type collected struct {
	fn     func(*Tx) error
	then   func(context.Context, error) error
	report func(error)
}

type collectionKey struct{}

// A collector is a collection, and the function that what has failed is reported to.
type collector struct {
	into   *Collection
	report func(error)
}

// Collect returns a context in which updates are added to the collection, whatever [Table] they
// are of: all must be of the host's namespace. An update returns nil then; its error is reported
// by [Collection.Commit].
func (c *Collection) Collect(ctx context.Context, report func(error)) context.Context {
	return context.WithValue(ctx, collectionKey{}, collector{c, report})
}

// add adds an update if the context has a collection.
func add(ctx context.Context, fn func(*Tx) error, then func(context.Context, error) error) bool {
	of, ok := ctx.Value(collectionKey{}).(collector)
	if !ok {
		return false
	}
	of.into.mu.Lock()
	defer of.into.mu.Unlock()
	of.into.updates = append(of.into.updates, collected{fn, then, of.report})
	return true
}

// Commit makes the updates in their order, and empties the collection. If one of them fails,
// each is made in a transaction of its own, so that the others are made all the same. The first
// commit fills the chains of the base rulesets anew, whatever is missing in them.
func (c *Collection) Commit(ctx context.Context, t *Table) {
	c.mu.Lock()
	updates := c.updates
	c.updates = nil
	c.mu.Unlock()
	if len(updates) == 0 {
		return
	}
	err := t.updates(ctx, func(x *Tx) error {
		x.rebuild = !c.rebuilt
		for _, u := range updates {
			if err := u.fn(x); err != nil {
				return err
			}
		}
		return nil
	})
	together := err == nil
	c.rebuilt = c.rebuilt || together
	for _, u := range updates {
		if !together {
			err = t.updates(ctx, u.fn)
		}
		if err := u.then(ctx, err); err != nil {
			u.report(err)
		}
	}
}
