package rtnl

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

// dropAction returns the action of a rule that drops packets in the syntax of ip(8); empty: another one.
func dropAction(action uint8) string {
	switch action {
	case unix.FR_ACT_BLACKHOLE:
		return "blackhole"
	case unix.FR_ACT_UNREACHABLE:
		return "unreachable"
	case unix.FR_ACT_PROHIBIT:
		return "prohibit"
	}
	return ""
}

// dropType is dropAction for the type of a route. IPv6 has one of table 0 where no other matches.
func (r *Route) dropType() string {
	switch {
	case r.Table == 0:
	case r.Type == unix.RTN_BLACKHOLE:
		return "blackhole"
	case r.Type == unix.RTN_UNREACHABLE:
		return "unreachable"
	case r.Type == unix.RTN_PROHIBIT:
		return "prohibit"
	}
	return ""
}

// A Drop is a rule or a route by which the kernel drops packets.
type Drop struct {
	Text   string // in the syntax of ip(8): "rule 100: to 10.1.0.2 blackhole", "route blackhole 10.1.0.0/24"
	Delete string // the command that deletes it
}

// A Policy has the routing rules and the routes of a namespace.
type Policy struct {
	rules  map[bool][]Rule // by whether they are of IPv4
	routes []Route         // of all tables
}

// Policy reads the rules and the routes of all tables.
func (c *Conn) Policy() (*Policy, error) {
	p := &Policy{rules: map[bool][]Rule{}}
	for _, af := range []int{unix.AF_INET, unix.AF_INET6} {
		rules, err := c.Rules(af)
		if err != nil {
			return nil, err
		}
		p.rules[af == unix.AF_INET] = rules
	}
	var err error
	p.routes, err = c.Routes(RouteFilter{Table: AllTables})
	return p, err
}

// Dropping is [Policy.Dropping] for one packet.
func (c *Conn) Dropping(src, dst netip.Addr, in string) (*Drop, error) {
	p, err := c.Policy()
	if err != nil {
		return nil, err
	}
	return p.Dropping(src, dst, in), nil
}

// Dropping returns what drops packets to dst; nil: nothing, as far as known. src is zero for packets whose source is not
// known, and in the name of the incoming link, empty for packets of the host itself. Rules with other conditions than
// these do not count.
func (p *Policy) Dropping(src, dst netip.Addr, in string) *Drop {
	if !dst.IsValid() {
		return nil
	}
	for _, r := range p.rules[dst.Is4()] {
		switch {
		case r.More && r.Drops == 0, r.OIF != "", r.Mark != 0, r.IIF != "" && r.IIF != in:
		case !covers(r.Src, src), !covers(r.Dst, dst):
		case r.Drops != 0:
			return r.Drop()
		default:
			route := p.best(r.Table, dst)
			if route == nil {
				continue
			}
			if route.dropType() == "" {
				return nil
			}
			return route.drop()
		}
	}
	return nil
}

// covers reports whether a selector matches an address. One that is not known is matched by an empty selector alone.
func covers(p netip.Prefix, a netip.Addr) bool { return p.Bits() <= 0 || a.IsValid() && p.Contains(a) }

// best returns the route of a table to an address: of the longest prefix the one with the smallest metric.
func (p *Policy) best(table int, dst netip.Addr) (best *Route) {
	for i := range p.routes {
		r := &p.routes[i]
		if r.Table != table || !r.Dst.Contains(dst) {
			continue
		}
		if best == nil || cmp.Or(cmp.Compare(best.Dst.Bits(), r.Dst.Bits()), cmp.Compare(r.Priority, best.Priority)) < 0 {
			best = r
		}
	}
	return best
}

// Drop describes a rule whose Drops is not 0.
func (r *Rule) Drop() *Drop {
	var words []string
	for _, selector := range []struct {
		name, value string
		is          bool
	}{{"from", short(r.Src), r.Src.Bits() > 0}, {"to", short(r.Dst), r.Dst.Bits() > 0}, {"iif", r.IIF, r.IIF != ""}} {
		if selector.is {
			words = append(words, selector.name, selector.value)
		}
	}
	text := strings.Join(append(words, dropAction(r.Drops)), " ")
	return &Drop{fmt.Sprintf("rule %d: %s", r.Priority, text), fmt.Sprintf("ip %srule del pref %d %s", six(r.Family == unix.AF_INET6), r.Priority, text)}
}

func (r *Route) drop() *Drop {
	text := r.dropType() + " " + Route{Dst: r.Dst}.String()
	if r.Table != unix.RT_TABLE_MAIN {
		text += fmt.Sprint(" table ", r.Table)
	}
	if r.Priority != 0 {
		text += fmt.Sprint(" metric ", r.Priority)
	}
	return &Drop{"route " + text, fmt.Sprintf("ip %sroute del %s", six(r.Dst.Addr().Is6()), text)}
}

// short formats a prefix as ip(8) does: an address without its length.
func short(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// six returns the option of ip(8) for IPv6.
func six(is bool) string {
	if is {
		return "-6 "
	}
	return ""
}
