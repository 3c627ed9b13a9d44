package nlconn

import (
	"sync"
	"time"

	"cnibox/internal/netns"
)

// Open connects to a netlink protocol in ns, such as unix.NETLINK_ROUTE. Of a namespace that a call
// shares ([netns.NS.Share]) all get the same connection, which Close leaves open until the call ends; else
// one that is idle, or a new one.
func Open(ns *netns.NS, protocol int) (*Conn, error) {
	k, err := netns.Keep(ns, protocol, func(kept bool) (keeper, error) {
		c := idleConns.take(ns, protocol)
		if c == nil {
			var err error
			if c, err = Listen(ns, protocol, 0); err != nil {
				return keeper{}, err
			}
		}
		c.ns, c.protocol, c.kept = ns, protocol, kept
		return keeper{c}, nil
	})
	return k.c, err
}

// A keeper closes a connection at the end of the call that keeps it.
type keeper struct{ c *Conn }

// Close closes it, unless it is to be idle.
func (k keeper) Close() error { return k.c.end() }

// Close closes the socket, unless a call keeps it, or [SlowToClose] has it idle.
func (c *Conn) Close() error {
	if c.kept {
		return nil
	}
	return c.end()
}

func (c *Conn) end() error {
	if idleConns.add(c) {
		return nil
	}
	return c.close()
}

// SlowToClose says that the kernel has something to clear away, for which the close of any socket of the
// protocol waits d at most. What [Open] has opened and is closed until then is idle, for the next Open in
// its namespace, which must be open by then. When the process ends after other slow work, nothing is left
// to wait for.
func SlowToClose(protocol int, d time.Duration) {
	idleConns.mu.Lock()
	defer idleConns.mu.Unlock()
	if idleConns.until == nil {
		idleConns.until, idleConns.conns = map[int]time.Time{}, map[place][]*Conn{}
	}
	idleConns.until[protocol] = time.Now().Add(d)
}

// A place is where a connection is of use.
type place struct {
	ns       netns.ID
	protocol int
}

// idleConns are open and not in use. There are as many in a namespace as were in use at once.
var idleConns pool

type pool struct {
	mu    sync.Mutex
	until map[int]time.Time // until which closing takes long, by protocol
	conns map[place][]*Conn
}

// add takes a connection in, unless it can be closed at once or its namespace is not known.
func (p *pool) add(c *Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.ns == nil || !time.Now().Before(p.until[c.protocol]) {
		return false
	}
	id, err := c.ns.ID()
	if err != nil {
		return false
	}
	at := place{id, c.protocol}
	p.conns[at] = append(p.conns[at], c)
	return true
}

// take returns a connection in ns; nil: there is none.
func (p *pool) take(ns *netns.NS, protocol int) *Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.conns) == 0 {
		return nil
	}
	id, err := ns.ID()
	at := place{id, protocol}
	last := len(p.conns[at]) - 1
	if err != nil || last < 0 {
		return nil
	}
	c := p.conns[at][last]
	p.conns[at] = p.conns[at][:last]
	if last == 0 {
		delete(p.conns, at)
	}
	return c
}
