package rtnl

import (
	"context"
	"sync"

	"github.com/cnibox/cnibox/internal/session"
)

// drops are the links of the host that a session deletes at its end. They are deleted by one request, since the kernel
// waits some 20 ms for each.
type drops struct {
	mu    sync.Mutex
	links []Link
	of    map[uint32]*session.Session // by index
}

// DelLater deletes a link of the host: at the end of a session that leaves its changes for that, else at once. One that is
// missing is not an error.
func DelLater(s *session.Session, l *Link) error {
	if !s.Leaves() {
		c, err := OnHost(s)
		if err != nil {
			return err
		}
		return SkipAbsent(c.Do(DropLink(l.Index)))
	}
	d := session.Left[drops](s)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.of == nil {
		d.of = map[uint32]*session.Session{}
	}
	d.links, d.of[l.Index] = append(d.links, *l), s
	return nil
}

// Take is that of a [session.Change].
func (d *drops) Take(ctx context.Context, s *session.Session) (do func(), aside bool) {
	d.mu.Lock()
	links, of := d.links, d.of
	d.links, d.of = nil, nil
	d.mu.Unlock()
	if len(links) == 0 {
		return nil, false
	}
	c, err := OnHost(s) // a goroutine may be in another namespace
	if err == nil {
		err = context.Cause(ctx)
	}
	return func() {
		if err == nil {
			err = session.Recover(func() error {
				return c.DelLinksOf(links, func(*Link) bool { return true }, func(index uint32, err error) { of[index].Fail(err) })
			})
		}
		if err == nil {
			return
		}
		for _, left := range of {
			left.Fail(err)
		}
	}, true
}

// Discard is that of a [session.Change].
func (d *drops) Discard() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.links, d.of = nil, nil
}
