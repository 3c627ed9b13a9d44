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

// A Together ends the DELs of several attachments at once: it deletes their links on the host
// together, since the kernel waits some 20 ms for each request, and releases their leases under one
// lock. The zero value is empty.
type Together struct {
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

type togetherKey struct{}

// A collector is a Together, and the function that gets the errors of one attachment.
type collector struct {
	into   *Together
	report func(error)
}

// Collect returns a context in which a DEL leaves its end to the Together. report gets the errors
// of that.
func (t *Together) Collect(ctx context.Context, report func(error)) context.Context {
	return context.WithValue(ctx, togetherKey{}, collector{t, report})
}

// endingOf returns an ending for a DEL; nil: the DEL ends at once.
func endingOf(ctx context.Context) *ending {
	if col, ok := ctx.Value(togetherKey{}).(collector); ok {
		return &ending{collector: col}
	}
	return nil
}

// add passes the ending to the Together, if anything is left to do.
func (e *ending) add() {
	if e.link == 0 && e.lease == nil {
		return
	}
	t := e.collector.into
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = append(t.end, e)
}

// hostLink finds a link of the host in one list of all links, which is read once.
func (t *Together) hostLink(host *rtnl.Conn, name string) (*rtnl.Link, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.links == nil {
		all, err := host.Links()
		if err != nil {
			return nil, err
		}
		t.all, t.links = all, make(map[string]*rtnl.Link, len(all))
		for i := range all {
			t.links[all[i].Name] = &all[i]
		}
	}
	if l := t.links[name]; l != nil {
		return l, nil
	}
	return nil, fmt.Errorf("link %s: %w", name, os.ErrNotExist)
}

// DelLinks deletes the links.
func (t *Together) DelLinks(ctx context.Context) {
	byIndex := map[uint32]*ending{}
	for _, e := range t.end {
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
		err = t.delLinks(byIndex, fail)
	}
	if err == nil {
		return
	}
	for _, e := range byIndex {
		fail(e, err)
	}
}

// delLinks deletes links of the host. An error that fail does not get is about all of them.
func (t *Together) delLinks(byIndex map[uint32]*ending, fail func(*ending, error)) error {
	host, err := rtnl.Dial(netns.Host())
	if err != nil {
		return err
	}
	defer host.Close()
	return host.DelLinksOf(t.all, func(l *rtnl.Link) bool { return byIndex[l.Index] != nil }, func(index uint32, err error) { fail(byIndex[index], err) })
}

// Release releases the leases of those whose link is gone, as a single DEL does, and empties the
// Together.
func (t *Together) Release(ctx context.Context) {
	ctx, forget := once.WithCache(ctx)
	defer forget()
	for _, e := range t.end {
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
	t.end, t.all, t.links = nil, nil, nil
}
