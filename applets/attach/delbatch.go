package attach

import (
	"context"
	"fmt"
	"os"
	"sync"

	"cnibox/internal/netns"
	"cnibox/internal/once"
	"cnibox/rtnl"
)

// A DelBatch ends the DELs of several attachments at once: it deletes their links on the host
// together, since the kernel waits some 20 ms for each request, and releases their leases under one
// lock. The zero value is empty.
type DelBatch struct {
	mu    sync.Mutex
	end   []*ending
	all   []rtnl.Link           // of the host, when the first DEL asked
	links map[string]*rtnl.Link // the same by name; nil: none has asked
}

// An ending is what is left to do for one DEL.
type ending struct {
	collector collector
	link      uint32                      // on the host; 0: none, or it is gone
	lease     func(context.Context) error // nil: there is none
	failed    bool                        // the link still exists
}

type delBatchKey struct{}

// A collector is a DelBatch, and the function that gets the errors of one attachment.
type collector struct {
	into   *DelBatch
	report func(error)
}

// Collect returns a context in which a DEL leaves its end to the DelBatch. report gets the errors
// of that.
func (b *DelBatch) Collect(ctx context.Context, report func(error)) context.Context {
	return context.WithValue(ctx, delBatchKey{}, collector{b, report})
}

// endingOf returns an ending for a DEL; nil: the DEL ends at once.
func endingOf(ctx context.Context) *ending {
	if col, ok := ctx.Value(delBatchKey{}).(collector); ok {
		return &ending{collector: col}
	}
	return nil
}

// add passes the ending to the DelBatch, if anything is left to do.
func (e *ending) add() {
	if e.link == 0 && e.lease == nil {
		return
	}
	b := e.collector.into
	b.mu.Lock()
	defer b.mu.Unlock()
	b.end = append(b.end, e)
}

// hostLink finds a link of the host in one list of all links, which is read once.
func (b *DelBatch) hostLink(host *rtnl.Conn, name string) (*rtnl.Link, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.links == nil {
		all, err := host.Links()
		if err != nil {
			return nil, err
		}
		b.all, b.links = all, make(map[string]*rtnl.Link, len(all))
		for i := range all {
			b.links[all[i].Name] = &all[i]
		}
	}
	if l := b.links[name]; l != nil {
		return l, nil
	}
	return nil, fmt.Errorf("link %s: %w", name, os.ErrNotExist)
}

// DelLinks deletes the links.
func (b *DelBatch) DelLinks(ctx context.Context) {
	byIndex := map[uint32]*ending{}
	for _, e := range b.end {
		if e.link != 0 {
			byIndex[e.link] = e
		}
	}
	if len(byIndex) == 0 {
		return
	}
	fail := func(e *ending, err error) {
		e.failed = true
		e.collector.report(err)
	}
	err := context.Cause(ctx)
	if err == nil {
		err = b.delLinks(byIndex, fail)
	}
	if err == nil {
		return
	}
	for _, e := range byIndex {
		fail(e, err)
	}
}

// delLinks deletes links of the host. An error that fail does not get is about all of them.
func (b *DelBatch) delLinks(byIndex map[uint32]*ending, fail func(*ending, error)) error {
	host, err := rtnl.Dial(netns.Host())
	if err != nil {
		return err
	}
	defer host.Close()
	return host.DelLinksOf(b.all, func(l *rtnl.Link) bool { return byIndex[l.Index] != nil }, func(index uint32, err error) { fail(byIndex[index], err) })
}

// Release releases the leases of those whose link is gone, as a single DEL does, and empties the
// DelBatch.
func (b *DelBatch) Release(ctx context.Context) {
	ctx, forget := once.WithCache(ctx)
	defer forget()
	for _, e := range b.end {
		if e.lease == nil || e.failed {
			continue
		}
		err := context.Cause(ctx)
		if err == nil {
			err = recoverPanic(e.lease, ctx)
		}
		if err != nil {
			e.collector.report(err)
		}
	}
	b.end, b.all, b.links = nil, nil, nil
}
