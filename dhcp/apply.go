package dhcp

import (
	"errors"
	"os"

	"cnibox/rtnl"
)

// leastMTU6 is the least MTU of a link with IPv6, in bytes: RFC 8200 section 5.
const leastMTU6 = 1280

// routes makes or drops those of a list that are not in another one. What is not there
// need not be dropped; and a default route that is there may be another network's, and
// stays.
func (p *place) routes(op func(rtnl.Route) rtnl.Op, list, but []Route, priority int) error {
	var errs []error
	for i := range list {
		r := &list[i]
		if hasRoute(but, r) {
			continue
		}
		err := p.conn.Do(op(rtnl.Route{Dst: r.Dst, GW: r.GW, Link: p.link.Index, Priority: priority}))
		if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// hasRoute looks for a route in a list.
func hasRoute(list []Route, r *Route) bool {
	for i := range list {
		if list[i] == *r {
			return true
		}
	}
	return false
}

// withdraw takes the routes and the address of a lease from the link. What is not
// there is fine.
func (p *place) withdraw(l *Lease, priority int) error {
	rerr := p.routes(rtnl.DropRoute, l.Routes, nil, priority)
	err := p.conn.Do(rtnl.DropAddr(p.link.Index, rtnl.Addr{Prefix: l.Address}))
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(rerr, err)
}

// change brings the link from what one lease says to what another does. The old
// address goes first: in the same network it would take the new one along when it goes.
func (p *place) change(old, l *Lease, priority int) error {
	had := old.Routes
	if old.Address != l.Address || old.Lapsed {
		had = nil
		if !old.Lapsed {
			if err := p.withdraw(old, priority); err != nil {
				return err
			}
		}
		if err := p.conn.Do(rtnl.ReplaceAddr(p.link.Index, rtnl.Addr{Prefix: l.Address})); err != nil {
			return err
		}
	}
	return errors.Join(p.routes(rtnl.DropRoute, had, l.Routes, priority), p.routes(rtnl.NewRoute, l.Routes, had, priority))
}

// fitMTU lowers the MTU of the link to what the network takes, and raises it again as
// far as it was when the server says so. It never grows beyond that.
func (h *Holder) fitMTU(p *place, l *Lease) error {
	if l.Is6() || h.state.KeepMTU {
		return nil
	}
	before := h.state.MTU
	if before == 0 {
		before = p.link.MTU
	}
	want := before
	if l.MTU != 0 && l.MTU < before && (l.MTU >= leastMTU6 || !h.state.V6) {
		want = l.MTU
	}
	if want == p.link.MTU {
		return nil
	}
	h.mu.Lock()
	h.state.MTU = before
	err := h.store.Save(&h.state)
	h.mu.Unlock()
	if err != nil {
		return err
	}
	return p.conn.SetLink(p.link.Index, rtnl.LinkChange{MTU: &want})
}
