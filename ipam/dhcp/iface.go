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

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
)

// ErrGone is the error for an interface that does not exist any more, or whose namespace does not:
// its lease is not needed.
var ErrGone = errors.New("the interface is gone")

// gone returns [ErrGone] with its cause.
func gone(err error) error { return fmt.Errorf("%w: %w", ErrGone, err) }

// A TimeoutError is the error of a lease that could not be acquired in time, with the cause.
type TimeoutError struct{ Reason error }

// Error begins with the phrase of the reference.
func (e *TimeoutError) Error() string { return "no more tries: " + e.Reason.Error() }

// Unwrap returns the reason.
func (e *TimeoutError) Unwrap() error { return e.Reason }

// An iface is the interface, with a socket to change it. It is open only while packets are exchanged:
// an open socket keeps the namespace of a deleted container alive, with its links.
type iface struct {
	ns   *netns.NS
	conn *rtnl.Conn
	link *rtnl.Link
}

// open finds the interface and compares its identity, since the path and the name may belong to
// another container by now. The error is [ErrGone] if it does not exist.
func (h *Holder) open() (*iface, error) {
	ns, err := netns.Open(h.settings.Root + h.state.NetNS)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, netns.ErrNotNS) {
		return nil, gone(err)
	}
	if err != nil {
		return nil, err
	}
	p := &iface{ns: ns}
	if err := p.find(h.state.Config, h.state.Identity); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// find looks up the link, and compares it with its identity; an empty one fits any.
func (p *iface) find(c Config, want string) (err error) {
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
	if err == nil && want != "" && !strings.HasPrefix(want, id) { // older records have the link layer address after it
		return gone(errors.New("it was replaced by another interface"))
	}
	return err
}

// identity distinguishes this interface from others of this boot with its name: by the namespace's
// inode and the link's index. The link layer address is not part of it, since tuning may change that;
// servers identify the client by the client identifier (RFC 2131 section 4.2).
func (p *iface) identity() (string, error) {
	id, err := p.ns.ID()
	if err != nil {
		return "", err
	}
	return strconv.FormatUint(id.Ino, 10) + "/" + strconv.Itoa(int(p.link.Index)) + "/", nil
}

// close closes the socket and the namespace.
func (p *iface) close() {
	if p.conn != nil {
		p.conn.Close()
	}
	p.ns.Close()
}

// The wait for a link that was just set up: its other end may be slow.
const (
	carrierPause = 2 * time.Millisecond
	carrierTime  = 2 * time.Second
	unknownTime  = 100 * time.Millisecond // for a link without an operational state, as a tun's
)

// up sets the link up if it is down, and waits until it carries packets, up to a bound. IFF_RUNNING is
// not used, as a new link has it before the kernel has checked the carrier.
func (p *iface) up(ctx context.Context) error {
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

// peer reads the host-side veth: the kernel updates the carrier state when the link is read, or
// otherwise up to a second late. Until then the veth drops all packets.
func (p *iface) peer() {
	if p.link.Kind != "veth" || !p.link.PeerNS {
		return
	}
	if c, err := rtnl.Dial(netns.Host()); err == nil {
		c.LinkAt(p.link.Parent) // in another namespace it is another link, or none
		c.Close()
	}
}

// pause waits; false: the context ended first.
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
