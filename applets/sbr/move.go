package sbr

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"

	"github.com/cnibox/cnibox/applets/chained"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// A routing is a verb, and the rules of the namespace.
type routing struct {
	*chained.Op
	rules []rtnl.Rule
	moved []chained.MovedRoute
}

// open reads the rules of the namespace.
func open(op *chained.Op) (*routing, error) {
	rules, err := chained.AllRules(op.Cont)
	return &routing{Op: op, rules: rules}, err
}

// tableOf returns the table of the rule that an earlier ADD has added for an address; 0: none.
func (s *routing) tableOf(ip netip.Addr) int {
	for _, r := range s.rules {
		if isSource(r) && r.Src.Addr() == ip && r.Table >= firstTable && !chained.IsReservedTable(r.Table) {
			return r.Table
		}
	}
	return 0
}

// apply makes a change and registers its undo. The undo ignores a route that exists already.
func (s *routing) apply(op, back rtnl.Op) error {
	if err := s.Cont.Do(op); err != nil {
		return err
	}
	s.Undo(op.String(), func(context.Context) error {
		if err := s.Cont.Do(back); !errors.Is(err, os.ErrExist) {
			return err
		}
		return nil
	})
	return nil
}

// rule adds the rule of an address, if it is missing.
func (s *routing) rule(ip netip.Addr, table int) error {
	rule := sourceRule(ip, table)
	for _, r := range s.rules {
		if isSource(r) && r.Src == rule.Src && r.Table == table {
			return nil
		}
	}
	return s.apply(rtnl.NewRule(rule), rtnl.DropRule(rule))
}

// Apply records the rules, fills the tables, adds the rules and deletes routes from the main table,
// in this order, so that every packet has a route at any time. The result has the tables of the
// moved routes.
func (c *conf) Apply(op *chained.Op) error {
	s, err := open(op)
	if err != nil {
		return err
	}
	ips := s.ownAddresses()
	rules, err := s.chooseTables(c, ips)
	if err != nil {
		return err
	}
	if err := s.remember(rules); err != nil {
		return err
	}
	main, err := s.Cont.Routes(rtnl.RouteFilter{Link: s.Link.Index})
	if err != nil {
		return err
	}
	if s.Restoring() {
		main = slices.DeleteFunc(main, func(r rtnl.Route) bool { return !c.restoreMoves(r, ips) })
	}
	for i, m := range rules {
		if c.Table == nil {
			if err := s.addRoutes(c, ips[i], m.Table, main); err != nil {
				return err
			}
		}
		if err := s.rule(m.Src, m.Table); err != nil {
			return err
		}
	}
	if c.Table == nil {
		err = s.removeFromMain(c, ips, main)
	}
	if err == nil {
		chained.SetTables(op.Request, s.moved)
	}
	return err
}

// restoreMoves reports whether RESTORE moves a route from the main table. It moves one to the
// gateway of an address, which was added when the link came up: by the kernel, or by RESTORE of the
// interface's plugin.
func (c *conf) restoreMoves(r rtnl.Route, ips []spec.IP) bool {
	return slices.ContainsFunc(ips, func(ip spec.IP) bool {
		return r.Dst == ip.Address.Masked() || r.Dst.IsSingleIP() && r.Dst.Addr() == c.gatewayOf(ip)
	})
}

// gatewayOf returns the configured gateway for an address, or the address's own; zero: none.
func (c *conf) gatewayOf(ip spec.IP) netip.Addr {
	if gw := c.gateway(ip.Address.Addr().Is4()); gw.IsValid() {
		return gw
	}
	return ip.Gateway
}

// chooseTables returns the rule of each address. Its table is the configured one, that of an
// earlier ADD, or a free one.
func (s *routing) chooseTables(c *conf, ips []spec.IP) (rules []ownRule, err error) {
	var used map[int]bool
	if c.Table == nil {
		if used, err = chained.UsedTables(s.Cont, s.rules); err != nil {
			return nil, err
		}
	}
	for _, ip := range ips {
		m := ownRule{Src: ip.Address.Addr()}
		if c.Table != nil {
			m.Table = *c.Table
		} else if m.Table = cmp.Or(s.tableOf(m.Src), s.recorded(m.Src)); m.Table == 0 {
			m.Table = chained.FreeTable(used, firstTable)
		}
		rules = append(rules, m)
	}
	return rules, nil
}

// belongsTo reports whether packets from an address need a route of the interface: its source or
// its gateway is in the address's network, or it has neither. Gateways of IPv6 are mostly
// link-local. Routes to the link itself stay.
func belongsTo(r rtnl.Route, ip spec.IP) bool {
	net := ip.Address.Masked()
	switch {
	case r.Dst.Addr().Is4() != net.Addr().Is4(), r.Dst.Addr().Is6() && r.Dst.Addr().IsLinkLocalUnicast():
		return false
	case !r.Src.IsValid() && !r.GW.IsValid():
		return true
	}
	return net.Contains(r.Src) || net.Contains(r.GW) || r.GW.IsLinkLocalUnicast()
}

// tableRoutes returns the routes of an address's table, those without a gateway first, since the
// others depend on them. If a gateway is known there is a default route; a configured one replaces
// the interface's.
func (c *conf) tableRoutes(ip spec.IP, main []rtnl.Route, link uint32, table int) []rtnl.Route {
	gw, static := c.gatewayOf(ip), c.gateway(ip.Address.Addr().Is4()).IsValid()
	var near, far []rtnl.Route
	for _, r := range main {
		isDefault := r.Dst.Bits() == 0
		if !belongsTo(r, ip) || static && isDefault {
			continue
		}
		if isDefault {
			gw = netip.Addr{}
		}
		r.Table = table
		if r.GW.IsValid() {
			far = append(far, r)
		} else {
			near = append(near, r)
		}
	}
	if gw.IsValid() {
		far = append(far, rtnl.Route{Dst: defaultOf(gw), GW: gw, Link: link, Table: table})
	}
	return append(near, far...)
}

// defaultOf returns the destination of a default route in the family of an address.
func defaultOf(a netip.Addr) netip.Prefix {
	p, _ := a.Prefix(0) // any address has a prefix of length 0
	return p
}

// addRoutes adds the routes of an address to its table in place of those of an earlier ADD, and
// records the routes of the table. RESTORE only adds missing ones.
func (s *routing) addRoutes(c *conf, ip spec.IP, table int, main []rtnl.Route) error {
	have, err := s.Cont.Routes(rtnl.RouteFilter{Table: table, Link: s.Link.Index})
	if err != nil {
		return err
	}
	want := c.tableRoutes(ip, main, s.Link.Index, table)
	if s.Restoring() {
		want = c.missing(ip, table, want, have)
	}
	for _, r := range want {
		back := rtnl.DropRoute(r)
		for _, old := range have {
			if old.Dst == r.Dst && (old.Priority == r.Priority || r.Priority == 0) {
				r.Priority = old.Priority
				back = rtnl.ReplaceRoute(old)
			}
		}
		err := s.apply(rtnl.ReplaceRoute(r), back)
		if rtnl.BadGateway(err) {
			return spec.Errorf(spec.CodeConfig, "%s: %w: a gateway has to be another host in a network of the interface; correct \"gateways\", or \"ipam\"", s.Link.Name, err)
		}
		if err != nil {
			return err
		}
	}
	for _, r := range append(want, have...) {
		s.moved = append(s.moved, chained.MovedRoute{Dst: r.Dst, GW: r.GW, To: r.GW, Table: table})
	}
	return nil
}

// missing returns the wanted routes that a table lacks, and the route to the network of the address
// if no route leads to the gateway.
func (c *conf) missing(ip spec.IP, table int, want, have []rtnl.Route) []rtnl.Route {
	static := c.gateway(ip.Address.Addr().Is4()).IsValid()
	want = slices.DeleteFunc(want, func(w rtnl.Route) bool {
		return slices.ContainsFunc(have, func(h rtnl.Route) bool { return h.Dst == w.Dst && (h.GW == w.GW || !static) })
	})
	all := slices.Concat(want, have)
	if !unreachedGateway(ip, all).IsValid() {
		return want
	}
	return append([]rtnl.Route{rtnl.NetworkRoute(ip.Address, all[0].Link, table)}, want...)
}

// unreachedGateway returns the gateway of a table's default route if it is in the network of the
// address and no route of the table leads to it; else zero.
func unreachedGateway(ip spec.IP, table []rtnl.Route) netip.Addr {
	for _, r := range table {
		leads := func(to rtnl.Route) bool { return !to.GW.IsValid() && to.Dst.Contains(r.GW) }
		if r.Dst.Bits() == 0 && !r.OnLink && ip.Address.Masked().Contains(r.GW) && !slices.ContainsFunc(table, leads) {
			return r.GW
		}
	}
	return netip.Addr{}
}

// removeFromMain deletes from the main table the routes that another table has now. With source
// hints those without a gateway stay, and those to the addresses' own networks get the address as
// source. Routes that belong to no address stay too.
func (s *routing) removeFromMain(c *conf, ips []spec.IP, main []rtnl.Route) error {
	for _, r := range slices.Backward(main) { // in reverse, so that the undo restores their order
		with, changed := r, false
		for _, ip := range ips {
			switch {
			case changed || !belongsTo(r, ip):
			case !c.AddSourceHints || r.GW.IsValid():
				with, changed = rtnl.Route{}, true
			case r.Dst == ip.Address.Masked():
				with.Src, changed = ip.Address.Addr(), true
			}
		}
		if with == r {
			continue
		}
		// Not NLM_F_REPLACE: it could replace a route of another interface.
		if err := s.apply(rtnl.DropRoute(r), rtnl.AppendRoute(r)); err != nil {
			return err
		}
		if !with.Dst.IsValid() {
			continue
		}
		if err := s.apply(rtnl.AppendRoute(with), rtnl.DropRoute(with)); err != nil {
			return err
		}
	}
	return nil
}

// Check looks for the rule of each address. In its table it looks for a default route, and a route
// to the gateway of that. It ignores the main table, which may have routes of router
// advertisements.
func (c *conf) Check(op *chained.Op) error {
	if err := op.CheckIndexes(); err != nil {
		return err
	}
	s, err := open(op)
	if err != nil {
		return err
	}
	for _, ip := range s.ownAddresses() {
		if err := s.check(c, ip); err != nil {
			return err
		}
	}
	return nil
}

// check is Check for one address.
func (s *routing) check(c *conf, ip spec.IP) error {
	addr := ip.Address.Addr()
	if c.Table != nil {
		for _, r := range s.rules {
			if isSource(r) && r.Src.Addr() == addr && r.Table == *c.Table {
				return nil
			}
		}
		return spec.Errorf(spec.CodeCheck, "rule from %s to table %d is missing", addr, *c.Table)
	}
	table := s.tableOf(addr)
	if table == 0 {
		return spec.Errorf(spec.CodeCheck, "rule from %s to a table of its own is missing", addr)
	}
	have, err := s.Cont.Routes(rtnl.RouteFilter{Table: table, Link: s.Link.Index})
	if err != nil {
		return err
	}
	if gw := unreachedGateway(ip, have); gw.IsValid() {
		return spec.Errorf(spec.CodeCheck, "table %d of %s has no route to the network of its gateway %s", table, addr, gw)
	}
	gw, static := c.gatewayOf(ip), c.gateway(addr.Is4()).IsValid()
	for _, r := range have {
		if !gw.IsValid() || r.Dst.Bits() == 0 && (!static || r.GW == gw) && r.Dst.Addr().Is4() == addr.Is4() {
			return nil
		}
	}
	if !gw.IsValid() {
		return spec.Errorf(spec.CodeCheck, "table %d of %s has no route of %s", table, addr, s.Link.Name)
	}
	return spec.Errorf(spec.CodeCheck, "table %d of %s has no default route by way of %s", table, addr, gw)
}
