// Package nft keeps the packet filter state of cnibox: tables of our own with fixed chains, maps
// and sets, whose elements name the attachment that owns them.
//
// It uses nf_tables netlink and starts no program. Messages:
// include/uapi/linux/netfilter/nf_tables.h.
package nft

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/session"

	"github.com/cnibox/cnibox/nft/internal/wire"
)

// A Table is our rule set in one network namespace. It keeps no socket open, and may be used from
// any goroutine.
type Table struct {
	ns      *netns.NS
	session *session.Session // nil: of no verb
	lock    string           // path of the lock file

	mu   sync.Mutex
	made map[byte]bool // families of the tables that its updates have made; see Prune
}

// An Option changes what [Open] returns, for tests.
type Option func(*Table)

// WithLock sets the path of the file that is locked during an update. The default is
// /run/cnibox/nft.lock.
func WithLock(path string) Option { return func(t *Table) { t.lock = path } }

// In returns the rule set of the host for a plugin of a session.
func In(s *session.Session) *Table { return Open(netns.Host(), WithSession(s)) }

// WithSession makes the Table that of a session, as [In] does for the host.
func WithSession(s *session.Session) Option { return func(t *Table) { t.session = s } }

// Open returns the rule set of ns. It sends nothing, and ns must stay open as long as the Table is
// used.
func Open(ns *netns.NS, opts ...Option) *Table {
	t := &Table{ns: ns, lock: defaultLock, made: map[byte]bool{}}
	for _, o := range opts {
		o(t)
	}
	return t
}

// updateTries is how often an update is tried when others change the rule set between reading and
// writing, as "nft flush ruleset" does.
const updateTries = 4

// Update calls fn, which plans changes, and makes all of them in one transaction, under the lock of
// the host. On an error of fn or of the kernel nothing has changed. fn may run more than once. Our
// tables are made when the first element needs them.
//
// In a session that leaves its changes for the end, the update is made then, with others, and Update returns nil.
func (t *Table) Update(ctx context.Context, fn func(*Tx) error) error {
	return t.UpdateThen(ctx, fn, func(_ context.Context, err error) error { return err })
}

// UpdateThen is Update, and then calls a function with the update's error; it returns the
// function's error.
func (t *Table) UpdateThen(ctx context.Context, fn func(*Tx) error, then func(context.Context, error) error) error {
	if t.session != nil && t.session.Leaves() {
		session.Left[rules](t.session).leave(update{t, t.session, fn, then})
		return nil
	}
	return then(ctx, t.updates(ctx, fn))
}

// updates makes the update at once.
func (t *Table) updates(ctx context.Context, fn func(*Tx) error) error {
	s, done, err := t.locked(ctx)
	if err != nil {
		return err
	}
	defer done()
	for n := 1; ; n++ {
		err = t.update(s, fn)
		if n == updateTries || !overtaken(err) || ctx.Err() != nil {
			return err
		}
	}
}

// locked takes the lock of the host and a socket; done releases both.
func (t *Table) locked(ctx context.Context) (s *sock, done func(), err error) {
	unlock, err := t.acquire(ctx)
	if err != nil {
		return nil, nil, err
	}
	if s, err = t.dial(); err != nil {
		unlock()
		return nil, nil, err
	}
	return s, func() {
		s.Close()
		unlock()
	}, nil
}

// overtaken reports whether an error is explained by a concurrent change between reading and
// writing: an object to delete is gone, an object to create exists, or an unused chain is jumped to
// again. It does not apply to errors of reading.
func overtaken(err error) bool {
	var refused *wire.Error
	return errors.As(err, &refused) &&
		(errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrExist) || errors.Is(err, unix.EBUSY))
}

// update is one try of Update, on a new Tx: what the last try read may be outdated.
func (t *Table) update(s *sock, fn func(*Tx) error) error {
	x := newTx(s)
	if err := fn(x); err != nil {
		return err
	}
	b, err := x.batch()
	if err == nil {
		err = s.commit(b)
	}
	if err != nil {
		return err
	}
	for _, f := range b.filters {
		f.updateRecords()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, family := range b.newTables {
		t.made[family] = true
	}
	return nil
}

// ignoreNotExist returns nil for an error about something missing: an element, a table, or kernel
// support for reading one.
func ignoreNotExist(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("nft: read the rule set: %w", wire.Explain(err, "CONFIG_NF_TABLES"))
	}
	return nil
}
