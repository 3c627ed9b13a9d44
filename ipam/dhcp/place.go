package dhcp

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/rtnl"
)

// ErrGone is about an interface that is not there any more, or whose namespace is not:
// nobody needs its lease.
var ErrGone = errors.New("the interface is gone")

// gone is [ErrGone] and what told it.
func gone(err error) error { return fmt.Errorf("%w: %w", ErrGone, err) }

// A TimeoutError says that the time for getting a lease is over, and why there is none.
type TimeoutError struct{ Reason error }

// Error begins as the reference does.
func (e *TimeoutError) Error() string { return "no more tries: " + e.Reason.Error() }

// Unwrap returns the reason.
func (e *TimeoutError) Unwrap() error { return e.Reason }

// A place is an interface as it is now, with sockets to change it. It is open while
// packets are exchanged and no longer: an open socket keeps a namespace alive, and all
// the links in it, when the container has gone.
type place struct {
	ns   *rtnl.NS
	conn *rtnl.Conn
	link *rtnl.Link
}

// open finds the interface. Both are told by more than their names: a path and a name
// may by now be another container's. The error is [ErrGone] if it is not there.
func (h *Holder) open() (*place, error) {
	ns, err := rtnl.OpenNS(h.settings.Root + h.state.NetNS)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, rtnl.ErrNotNS) {
		return nil, gone(err)
	}
	if err != nil {
		return nil, err
	}
	p := &place{ns: ns}
	if err := p.find(h.state.Config, h.state.Identity); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// find looks up the link, and compares it with its identity; an empty one fits any.
func (p *place) find(c Config, want string) (err error) {
	if p.conn, err = rtnl.Dial(p.ns); err != nil {
		return err
	}
	if p.link, err = p.conn.Link(c.IfName); errors.Is(err, os.ErrNotExist) {
		return gone(err)
	}
	if err != nil {
		return err
	}
	id, err := p.identity()
	if err == nil && want != "" && !strings.HasPrefix(want, id) { // older records have the address behind it
		return gone(errors.New("it is another one by now"))
	}
	return err
}

// identity tells this interface from others of this boot that had or will have its name:
// the namespace's inode and the link's index. The link layer address is no part of it,
// since a later plugin of the chain (tuning) may change that. The lease goes on then:
// servers know us by the client identifier, which stays (RFC 2131 section 4.2), and answer
// to the address that the link has.
func (p *place) identity() (string, error) {
	id, err := p.ns.ID()
	if err != nil {
		return "", err
	}
	return strconv.FormatUint(id.Ino, 10) + "/" + strconv.Itoa(int(p.link.Index)) + "/", nil
}

// close gives all of it back.
func (p *place) close() {
	if p.conn != nil {
		p.conn.Close()
	}
	p.ns.Close()
}

// The wait for a link that was just set up: its other end may be slow.
const (
	carrierPause = 2 * time.Millisecond
	carrierTime  = 2 * time.Second
	unknownTime  = 100 * time.Millisecond // for a link that cannot tell, as a tun's
)

// up sets the link up if it is down, and waits until it carries packets. One that does
// not in time is tried all the same. That it is running is no answer, since a new link
// says so before the kernel has looked.
func (p *place) up(ctx context.Context) error {
	if !p.link.Up {
		if err := p.conn.SetLink(p.link.Index, rtnl.LinkChange{Up: new(true)}); err != nil {
			return err
		}
	}
	for begin := time.Now(); time.Since(begin) < carrierTime; {
		l, err := p.conn.LinkAt(p.link.Index)
		if err != nil {
			return err
		}
		p.link = l
		if l.OperUp || l.Flags&unix.IFF_RUNNING != 0 && time.Since(begin) > unknownTime {
			p.peer()
			return nil
		}
		if !pause(ctx, carrierPause) {
			return &TimeoutError{errors.New(p.link.Name + " has no carrier: set its other end up, or what it is plugged into")}
		}
	}
	return nil
}

// peer looks at the host's end of a veth pair: the kernel learns of a carrier up to a
// second late, and a look makes it learn now. Until then that end drops all packets.
func (p *place) peer() {
	if p.link.Kind != "veth" || !p.link.PeerNS {
		return
	}
	if c, err := rtnl.Dial(rtnl.Host()); err == nil {
		c.LinkAt(p.link.Parent) // in another namespace than ours it is another link, or none
		c.Close()
	}
}

// pause waits; false says that the context ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
