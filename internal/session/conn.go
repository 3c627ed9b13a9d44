package session

import (
	"errors"
	"sync"

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/nlconn"
)

// sockets are open until the end, by namespace and netlink protocol.
type sockets struct {
	mu   sync.Mutex
	open map[place]*nlconn.Conn
}

type place struct {
	ns       *netns.NS // nil: the host
	protocol int
}

// Conn returns the socket of a namespace for a netlink protocol, such as unix.NETLINK_ROUTE: the same one each time,
// which the session closes.
func (s *Session) Conn(ns *netns.NS, protocol int) (*nlconn.Conn, error) {
	if ns.IsHost() {
		return s.host.conn(ns, place{nil, protocol})
	}
	return s.of.sockets.conn(ns, place{ns, protocol})
}

func (o *sockets) conn(ns *netns.NS, at place) (*nlconn.Conn, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c := o.open[at]; c != nil {
		return c, nil
	}
	c, err := nlconn.Open(ns, at.protocol)
	if err != nil {
		return nil, err
	}
	if o.open == nil {
		o.open = map[place]*nlconn.Conn{}
	}
	o.open[at] = c
	return c, nil
}

func (o *sockets) close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var errs []error
	for _, c := range o.open {
		errs = append(errs, c.Close())
	}
	o.open = nil
	return errors.Join(errs...)
}
