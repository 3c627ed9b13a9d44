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
	mu  sync.Mutex
	end []*ending
	// all are the links of the host, when the first DEL asked; links has the same by name, and is nil if
	// none has. Those of a single DEL are asked for one by one, and all has what was found.
	all    []rtnl.Link
	links  map[string]*rtnl.Link
	single bool
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

// LeaveLink leaves the deletion of a link of the host to the DelBatch of the context; false: there is none.
func LeaveLink(ctx context.Context, l *rtnl.Link) bool {
	e := endingOf(ctx)
	if e == nil {
		return false
	}
	e.link = l.Index
	b := e.collector.into
	b.mu.Lock()
	if b.links == nil || b.links[l.Name] == nil {
		b.all = append(b.all, *l)
	}
	b.mu.Unlock()
	e.add()
	return true
}

// hostLink finds a link of the host in one list of all links, which is read once.
func (b *DelBatch) hostLink(host *rtnl.Conn, name string) (*rtnl.Link, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.single {
		l, err := host.Link(name)
		if err == nil {
			b.all = append(b.all, *l)
		}
		return l, err
	}
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

// delLinks opens a socket on the host, and returns what deletes the links.
func (b *DelBatch) delLinks(ctx context.Context, ns *netns.NS) func() {
	byIndex := map[uint32]*ending{}
	for _, e := range b.end {
		if e.link != 0 {
			byIndex[e.link] = e
		}
	}
	if len(byIndex) == 0 {
		return func() {}
	}
	fail := func(e *ending, err error) {
		e.failed = true
		e.collector.report(err)
	}
	host, err := rtnl.Dial(ns)
	if err == nil {
		err = context.Cause(ctx)
	}
	return func() {
		if host != nil {
			defer host.Close()
		}
		if err == nil {
			err = host.DelLinksOf(b.all, func(l *rtnl.Link) bool { return byIndex[l.Index] != nil }, func(index uint32, err error) { fail(byIndex[index], err) })
		}
		if err == nil {
			return
		}
		for _, e := range byIndex {
			fail(e, err)
		}
	}
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
