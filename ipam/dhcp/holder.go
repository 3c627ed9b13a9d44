package dhcp

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cnibox/cnibox/internal/state"
	"github.com/cnibox/cnibox/rtnl"
)

// A State is the state of a [Holder]. It is written to disk as JSON, and is enough to continue with
// the leases, or to release them.
type State struct {
	Config
	Identity string   `json:"identity"`            // of the interface; empty: not known yet
	Boot     string   `json:"boot"`                // boot ID; no namespace outlives its boot
	MTU      int      `json:"mtuBefore,omitempty"` // the link's former MTU, in bytes; 0: not changed
	Given    bool     `json:"given"`               // all leases were acquired; false: the ADD has not ended
	Leases   []*Lease `json:"leases,omitempty"`    // one of each family at most; each is immutable
}

// A Store stores one state. Save replaces the former state. It is called before every change that
// needs the new state to continue.
type Store interface {
	Save(*State) error
	Kept() bool // false: the leases were released meanwhile
	Drop() error
}

// A Holder has the leases of one interface: it acquires, renews, applies and releases them. It has
// one goroutine for each lease, and no thread or open file while it sleeps.
type Holder struct {
	settings Settings
	store    Store
	network  network            // itself, except in tests
	stop     context.CancelFunc // nil: it was not started
	running  sync.WaitGroup

	mu    sync.Mutex
	state State
}

// A network is what keep needs of the servers and the interface.
type network interface {
	obtain(ctx context.Context, s step, old *Lease, wait time.Duration) (*Lease, error)
	configure(*Lease) (*Lease, error)
}

// Resume returns the holder of a saved state. It starts nothing.
func Resume(state State, s Settings, store Store) *Holder {
	h := &Holder{settings: s, store: store, state: state}
	h.network = h
	return h
}

// Acquire sets the interface up, gets its first leases and saves them. After an error it releases
// all leases and deletes the saved state.
func Acquire(ctx context.Context, c Config, s Settings, store Store) (*Holder, error) {
	h := Resume(State{Config: c, Boot: state.BootID()}, s, store)
	ctx, cancel := context.WithTimeout(ctx, s.AcquireTimeout)
	defer cancel()
	err := h.acquireAll(ctx)
	if err == nil {
		h.mu.Lock()
		h.state.Given = true
		err = store.Save(&h.state)
		h.mu.Unlock()
	}
	if err != nil {
		return nil, errors.Join(err, h.Release(context.WithoutCancel(ctx)))
	}
	return h, nil
}

// acquireAll gets the leases that the configuration asks for, one after the other.
func (h *Holder) acquireAll(ctx context.Context) error {
	for _, six := range []bool{false, true} {
		if six && !h.state.V6 || !six && !h.state.V4 {
			continue
		}
		err := h.session(ctx, six, func(p *iface, c client) error {
			l, err := h.acquire(ctx, c, nil, false)
			if err != nil {
				return err
			}
			if err := h.put(l); err != nil {
				return err
			}
			return h.fitMTU(p, l, 0)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// session opens the interface, sets it up, opens a client on it, and closes both after fn.
func (h *Holder) session(ctx context.Context, six bool, fn func(*iface, client) error) error {
	p, err := h.open()
	if err != nil {
		return err
	}
	defer p.close()
	if h.state.Identity == "" {
		if h.state.Identity, err = p.identity(); err != nil {
			return err
		}
	}
	if err := p.up(ctx); err != nil {
		return err
	}
	return h.withClient(ctx, p, six, fn)
}

// withClient opens a client on an interface, and closes it after fn.
func (h *Holder) withClient(ctx context.Context, p *iface, six bool, fn func(*iface, client) error) error {
	var c client
	var err error
	if six {
		c, err = newClient6(ctx, p, h.state.Config, &h.settings)
	} else {
		c, err = newClient4(p, h.state.Config, &h.settings)
	}
	if err != nil {
		return err
	}
	defer c.close()
	return fn(p, c)
}

// put saves a lease, which replaces that of its family, and uses it even if saving fails. The IPv4
// lease comes first: runtimes use the first address as the main one.
func (h *Holder) put(l *Lease) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	leases := []*Lease{l} // a new list: others may be reading the old one
	for _, old := range h.state.Leases {
		switch {
		case old.Is6() == l.Is6():
		case l.Is6():
			leases = []*Lease{old, l}
		default:
			leases = append(leases, old)
		}
	}
	h.state.Leases = leases
	return h.store.Save(&h.state)
}

// Leases returns the leases as they are now. Neither they nor the slice may be changed.
func (h *Holder) Leases() []*Lease {
	h.mu.Lock()
	leases := h.state.Leases
	h.mu.Unlock()
	return leases
}

// Check returns [ErrGone] if the interface does not exist any more. Nothing is sent.
func (h *Holder) Check() error {
	p, err := h.open()
	if err == nil {
		p.close()
	}
	return err
}

// Matches reports whether the holder has all leases of a configuration, for the interface that exists
// now.
func (h *Holder) Matches(c Config) bool {
	return h.state.Given && h.state.NetNS == c.NetNS && h.state.IfName == c.IfName && h.state.V4 == c.V4 && h.state.V6 == c.V6 && h.Check() == nil
}

// InOtherNS reports whether the interface exists, in a namespace other than that of a configuration.
func (h *Holder) InOtherNS(c Config) bool { return h.state.NetNS != c.NetNS && h.Check() == nil }

// SameBoot reports whether the state is of this boot. The leases of another one have no owner.
func (h *Holder) SameBoot() bool { return h.state.Boot == state.BootID() }

// Stop ends the goroutines of Keep. The leases stay.
func (h *Holder) Stop() {
	if h.stop != nil {
		h.stop()
		h.running.Wait()
	}
}

// releaseTime bounds the release of all leases.
const releaseTime = 2 * time.Second

// Release releases the leases and drops the state. A lease that cannot be released, since the
// interface is gone or down, expires at the server; that is logged and no error.
func (h *Holder) Release(ctx context.Context) error {
	h.Stop()
	ctx, cancel := context.WithTimeout(ctx, releaseTime)
	defer cancel()
	for _, l := range h.Leases() {
		if l.Lapsed && !l.Pending {
			continue
		}
		if err := h.releaseOne(ctx, l); err != nil {
			h.log("not released, and runs out by itself", l, err)
		}
	}
	h.restoreMTU()
	return h.store.Drop()
}

var errDown = errors.New("the link is down")

// releaseOne releases one lease, if the link is up: the link of an ending container is not set up.
func (h *Holder) releaseOne(ctx context.Context, l *Lease) error {
	p, err := h.open()
	if err != nil {
		return err
	}
	defer p.close()
	if !p.link.Up {
		return errDown
	}
	return h.withClient(ctx, p, l.Is6(), func(_ *iface, c client) error { return c.release(ctx, l) })
}

// restoreMTU restores the MTU of a link that outlives the container, such as a device of the host.
func (h *Holder) restoreMTU() {
	if h.state.MTU == 0 {
		return
	}
	p, err := h.open()
	if err != nil {
		return // gone, and its MTU with it
	}
	defer p.close()
	if err := p.conn.SetLink(p.link.Index, rtnl.LinkChange{MTU: &h.state.MTU}); err != nil {
		h.settings.Log(err.Error())
	}
}

// log logs a change of a lease and its cause.
func (h *Holder) log(what string, l *Lease, err error) {
	text := "lease of " + l.Address.Addr().String() + " for " + h.state.IfName + " in " + h.state.NetNS + " " + what
	if err != nil {
		text += ": " + err.Error()
	}
	h.settings.Log(text)
}
