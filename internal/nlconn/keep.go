package nlconn

import (
	"sync"
	"time"

	"cnibox/internal/fault"
	"cnibox/internal/netns"
)

// Open connects to a netlink protocol in ns, such as unix.NETLINK_ROUTE. For a namespace that a call
// shares ([netns.NS.Share]) it always returns the same connection, which Close leaves open until the call
// ends; otherwise an idle connection, or a new one.
func Open(ns *netns.NS, protocol int) (*Conn, error) {
	k, err := netns.Keep(ns, protocol, func(kept bool) (keeper, error) {
		c := idleConns.take(ns, protocol)
		if c == nil {
			var err error
			if c, err = Listen(ns, protocol, 0); err != nil {
				return keeper{}, err
			}
		} else {
			fault.Done(fault.Sockets, 1)
		}
		c.ns, c.protocol, c.kept = ns, protocol, kept
		return keeper{c}, nil
	})
	return k.c, err
}

// A keeper closes a connection at the end of the call that keeps it.
type keeper struct{ c *Conn }

// Close closes the connection, unless it becomes idle.
func (k keeper) Close() error { return k.c.end() }

// Close closes the socket, unless a call keeps it open, or it becomes idle: see [SlowToClose].
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

// SlowToClose says that the kernel has objects to free, and that closing any socket of the protocol waits
// for it, d at most. A connection from [Open] that is closed within d becomes idle, for the next Open in
// its namespace; its NS must still be open then. The process closes idle connections when it ends: if it
// has other slow work before, it need not wait.
func SlowToClose(protocol int, d time.Duration) {
	idleConns.mu.Lock()
	defer idleConns.mu.Unlock()
	if idleConns.until == nil {
		idleConns.until, idleConns.conns = map[int]time.Time{}, map[connKey][]*Conn{}
	}
	idleConns.until[protocol] = time.Now().Add(d)
}

// A connKey identifies the connections that are of use to an [Open].
type connKey struct {
	ns       netns.ID
	protocol int
}

// idleConns has the connections that are open and not in use: per namespace at most as many as were in
// use at once.
var idleConns pool

type pool struct {
	mu    sync.Mutex
	until map[int]time.Time // when closing is fast again, by protocol
	conns map[connKey][]*Conn
}

// add makes a connection idle, unless closing it is fast or its namespace is unknown.
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
	key := connKey{id, c.protocol}
	p.conns[key] = append(p.conns[key], c)
	return true
}

// take removes and returns a connection in ns; nil: there is none.
func (p *pool) take(ns *netns.NS, protocol int) *Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.conns) == 0 {
		return nil
	}
	id, err := ns.ID()
	key := connKey{id, protocol}
	last := len(p.conns[key]) - 1
	if err != nil || last < 0 {
		return nil
	}
	c := p.conns[key][last]
	p.conns[key] = p.conns[key][:last]
	if last == 0 {
		delete(p.conns, key)
	}
	return c
}
