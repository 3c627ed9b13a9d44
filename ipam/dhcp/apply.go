package dhcp

import (
	"errors"
	"os"
	"slices"

	"github.com/cnibox/cnibox/rtnl"
)

// leastMTU6 is the least MTU of a link with IPv6, in bytes: RFC 8200 section 5.
const leastMTU6 = 1280

// routes replaces some routes of the interface by others, and returns those that it has then. Routes
// to be deleted need not exist, and a default route that exists may be another network's, and stays.
// A route that cannot be added does not replace the former one.
func (p *iface) routes(current, want []Route, priority int) (has []Route, err error) {
	var errs []error
	do := func(op func(rtnl.Route) rtnl.Op, r Route) bool {
		err := p.conn.Do(op(rtnl.Route{Dst: r.Dst, GW: r.GW, Link: p.link.Index, Priority: priority}))
		done := err == nil || errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrExist)
		if !done {
			errs = append(errs, err)
		}
		return done
	}
	for _, r := range current {
		if !slices.Contains(want, r) && !do(rtnl.DropRoute, r) {
			has = append(has, r)
		}
	}
	for _, r := range want {
		if slices.Contains(current, r) || do(rtnl.NewRoute, r) {
			has = append(has, r)
			continue
		}
		for _, former := range current {
			if former.Dst == r.Dst && !slices.Contains(has, former) && do(rtnl.NewRoute, former) {
				has = append(has, former)
			}
		}
	}
	return has, errors.Join(errs...)
}

// change replaces the address and the routes of one lease by those of another, and returns what the
// link has then. The old address is deleted first: in the same network the kernel would delete the
// new one with it.
func (p *iface) change(current, want *Lease, priority int) (*Lease, error) {
	has := *current
	if has.Address != want.Address {
		has.Routes, _ = p.routes(has.Routes, nil, priority) // the kernel deletes the others with the address
		if has.Address.IsValid() {
			err := p.conn.Do(rtnl.DropAddr(p.link.Index, rtnl.Addr{Prefix: has.Address}))
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return &has, err
			}
		}
		has = Lease{}
		if want.Address.IsValid() {
			if err := p.conn.Do(rtnl.ReplaceAddr(p.link.Index, rtnl.Addr{Prefix: want.Address})); err != nil {
				return &has, err
			}
			has.Address = want.Address
		}
	}
	var err error
	has.Routes, err = p.routes(has.Routes, want.Routes, priority)
	return &has, err
}

// applyLease configures the interface for a lease. It returns the lease as it is then, even after an
// error.
func (h *Holder) applyLease(p *iface, l *Lease) (*Lease, error) {
	if l.On == nil {
		return l, nil
	}
	settled := *l
	current, err := p.change(l.On, l.wanted(), h.state.Priority)
	if settled.On = current; err == nil {
		settled.On = nil
	}
	return &settled, errors.Join(err, h.put(&settled))
}

// fitMTU lowers the MTU of the link to that of the network, and raises it again, up to the former
// one, when the server sends a larger one. If the server sends had, as before, it does not change the
// MTU, which tuning may have set.
func (h *Holder) fitMTU(p *iface, l *Lease, had int) error {
	if l.Is6() || h.state.KeepMTU || l.MTU == had {
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
