package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/cniexec/inventory"
	"github.com/cnibox/cnibox/applets/cniexec/sandbox"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// checkPolicy looks for rules and routes of this host that drop the packets from or to a container, and for strict reverse path
// filters that do so since the route to the container leads out of another link. The rules are read once; the kernel is asked for
// the route to each address.
func (d *Doctor) checkPolicy(context.Context) {
	if d.inv.Links == nil || !slices.ContainsFunc(d.live(), func(a *inventory.Entry) bool { return a.Conf.Routed }) {
		return
	}
	_, err := inventory.AskHost(func(c *rtnl.Conn) (struct{}, error) {
		rules := map[bool][]rtnl.Rule{}
		for _, af := range []int{unix.AF_INET, unix.AF_INET6} {
			var err error
			if rules[af == unix.AF_INET], err = c.Rules(af); err != nil {
				return struct{}{}, err
			}
		}
		policy := sync.OnceValues(c.Policy)
		for _, a := range d.live() {
			for _, p := range a.Addresses() {
				if a.Conf.Routed {
					d.routedTo(c, policy, a, p.Addr())
					d.dropsFrom(rules[p.Addr().Is4()], a, p.Addr())
				}
			}
		}
		return struct{}{}, nil
	})
	if err != nil {
		d.skip("routing rules", err)
	}
}

// routedTo examines the route to an address. policy is asked for if there is none.
func (d *Doctor) routedTo(c *rtnl.Conn, policy func() (*rtnl.Policy, error), a *inventory.Entry, addr netip.Addr) {
	routes, err := c.LookupRoute(rtnl.Lookup{Dst: netip.AddrPortFrom(addr, 0)})
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EACCES), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH):
		p, err := policy()
		if err != nil {
			return
		}
		if drop := p.Dropping(netip.Addr{}, addr, ""); drop != nil {
			d.drops(a, "to "+addr.String(), drop)
		}
	case err == nil && addr.Is4() && len(routes) > 0:
		d.reversePath(a, addr, routes)
	}
}

// drops adds the finding about a rule or a route.
func (d *Doctor) drops(a *inventory.Entry, what string, drop *rtnl.Drop) {
	d.add(Finding{Check: "routing", Where: d.title(a), Message: fmt.Sprintf("packets %s are dropped by the %s", what, drop.Text), Repair: drop.Delete, Code: spec.CodeHost}, a)
}

// dropsFrom looks for a rule that drops what comes from an address.
func (d *Doctor) dropsFrom(rules []rtnl.Rule, a *inventory.Entry, addr netip.Addr) {
	in := a.Conf.Link
	if in == "" {
		in = a.HostLink
	}
	for _, r := range rules {
		if r.Drops != 0 && r.Src.Bits() > 0 && r.Src.Contains(addr) && r.Dst.Bits() <= 0 && (r.IIF == "" || r.IIF == in) && r.OIF == "" && r.Mark == 0 {
			d.drops(a, "from "+addr.String(), r.Drop())
			return
		}
	}
}

// reversePath looks for a strict reverse path filter on the link by which packets of an address come, if the route to the
// address leads out of another one.
func (d *Doctor) reversePath(a *inventory.Entry, addr netip.Addr, routes []rtnl.Route) {
	in, host := d.inv.Links.ByName[a.Conf.Link], d.inv.Link(a)
	if a.Conf.Link == "" {
		in = host
	}
	if in == nil || in.Master != 0 || slices.ContainsFunc(routes, func(r rtnl.Route) bool { return r.Link == in.Index || r.Type != unix.RTN_UNICAST }) {
		return
	}
	own := "net/ipv4/conf/" + in.Name + "/rp_filter"
	if max(sandbox.Sysctl("net/ipv4/conf/all/rp_filter"), sandbox.Sysctl(own)) != "1" { // the kernel uses the larger one
		return
	}
	route := routes[0].Dst.String()
	if routes[0].Dst.Bits() == 0 {
		route = "default"
	}
	del := fmt.Sprintf("ip route del %s dev %s", route, d.linkName(routes[0].Link))
	if routes[0].Table != unix.RT_TABLE_MAIN {
		del += fmt.Sprint(" table ", routes[0].Table)
	}
	d.add(Finding{Check: "rp_filter", Where: d.title(a), Repair: del, Code: spec.CodeHost,
		Message: fmt.Sprintf("%s drops what comes from %s, whose route, %s dev %s, leads elsewhere", in.Name, addr, route, d.linkName(routes[0].Link))}, a)
}
