package dhcp

import (
	"errors"
	"os"

	"cnibox/rtnl"
)

// leastMTU6 is the least MTU of a link with IPv6, in bytes: RFC 8200 section 5.
const leastMTU6 = 1280

// routes brings the interface from some routes to others, and returns those that it has
// then. What is not there need not be dropped; and a default route that is there may be
// another network's, and stays. A route that cannot be made leaves in place the one that
// it was to replace: a gateway that was is better than none.
func (p *place) routes(on, want []Route, priority int) (has []Route, err error) {
	var errs []error
	do := func(op func(rtnl.Route) rtnl.Op, r *Route) bool {
		err := p.conn.Do(op(rtnl.Route{Dst: r.Dst, GW: r.GW, Link: p.link.Index, Priority: priority}))
		done := err == nil || errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrExist)
		if !done {
			errs = append(errs, err)
		}
		return done
	}
	for i := range on {
		if !hasRoute(want, &on[i]) && !do(rtnl.DropRoute, &on[i]) {
			has = append(has, on[i])
		}
	}
	for i := range want {
		if hasRoute(on, &want[i]) || do(rtnl.NewRoute, &want[i]) {
			has = append(has, want[i])
			continue
		}
		for k := range on {
			if on[k].Dst == want[i].Dst && !hasRoute(has, &on[k]) && do(rtnl.NewRoute, &on[k]) {
				has = append(has, on[k])
			}
		}
	}
	return has, errors.Join(errs...)
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

// change brings the link from what it has to what it shall have, and returns what it has
// then. The old address goes first: in the same network it would take the new one along
// when it goes.
func (p *place) change(on, want *Lease, priority int) (*Lease, error) {
	has := *on
	if has.Address != want.Address {
		has.Routes, _ = p.routes(has.Routes, nil, priority) // the address takes along what stays
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

// settle brings the interface to what a lease says. It returns the lease as it is then,
// also with an error.
func (h *Holder) settle(p *place, l *Lease) (*Lease, error) {
	if l.On == nil {
		return l, nil
	}
	settled := *l
	on, err := p.change(l.On, l.wants(), h.state.Priority)
	if settled.On = on; err == nil {
		settled.On = nil
	}
	return &settled, errors.Join(err, h.put(&settled))
}

// fitMTU lowers the MTU of the link to what the network takes, and raises it again as
// far as it was when the server says so. It never grows beyond that. As long as the
// server tells what it told before, told, it is left to whoever has set it since (tuning).
func (h *Holder) fitMTU(p *place, l *Lease, told int) error {
	if l.Is6() || h.state.KeepMTU || l.MTU == told {
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
