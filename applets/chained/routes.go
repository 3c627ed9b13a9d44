package chained

import (
	"cmp"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// A MovedRoute is a route of a result that was moved from the main table to another.
type MovedRoute struct {
	Dst    netip.Prefix
	GW, To netip.Addr // the gateway before and now
	Table  int
}

// SetTables enters the tables of moved routes into prevResult, so that CHECK of the plugin that
// created the routes finds them. From a result of a version without tables it removes the routes: a
// route without a table would be in the main one.
func SetTables(r *spec.Request, moved []MovedRoute) {
	kept := r.Prev.Routes[:0]
	for _, rt := range r.Prev.Routes {
		m := FindMoved(moved, rt)
		if m != nil && !r.Net.Version.AtLeast(spec.V110) {
			continue
		}
		if m != nil {
			rt.Table = &m.Table
			if rt.GW.IsValid() {
				rt.GW = m.To
			}
		}
		kept = append(kept, rt)
	}
	r.Prev.Routes = kept
}

// FindMoved finds a route of a result among the moved ones; nil: not found. It compares only the
// destination of a default route, since a plugin may have chosen its gateway.
func FindMoved(moved []MovedRoute, rt spec.Route) *MovedRoute {
	if rt.Table != nil && cmp.Or(*rt.Table, unix.RT_TABLE_MAIN) != unix.RT_TABLE_MAIN {
		return nil
	}
	for i, m := range moved {
		if m.Dst == rt.Dst.Masked() && (!rt.GW.IsValid() || m.GW == rt.GW || m.Dst.Bits() == 0) {
			return &moved[i]
		}
	}
	return nil
}

// ReservedTableText reports an invalid table; its arguments are the table and the largest number.
const ReservedTableText = `"table" %d is not within 1 to %d, or is one that every namespace has (253 to 255)`

// IsReservedTable reports whether a table exists in every namespace: default, main or local.
func IsReservedTable(table int) bool {
	return table >= unix.RT_TABLE_DEFAULT && table <= unix.RT_TABLE_LOCAL
}

// UsedTables returns the tables of a namespace that have routes, to which rules lead, or that
// belong to its VRFs.
func UsedTables(c *rtnl.Conn, rules []rtnl.Rule) (map[int]bool, error) {
	used := make(map[int]bool)
	for _, r := range rules {
		used[r.Table] = true
	}
	routes, err := c.Routes(rtnl.RouteFilter{Table: rtnl.AllTables})
	if err != nil {
		return nil, err
	}
	for _, r := range routes {
		used[r.Table] = true
	}
	links, err := c.Links()
	for _, l := range links {
		if vrf, ok := l.Data.(rtnl.VRF); ok {
			used[vrf.Table] = true
		}
	}
	return used, err
}

// FreeTable returns the first unused table, beginning with from, and marks it as used.
func FreeTable(used map[int]bool, from int) int {
	for used[from] || IsReservedTable(from) {
		from++
	}
	used[from] = true
	return from
}

// AllRules returns the rules of both families. A kernel without IPv6 has no IPv6 rules.
func AllRules(c *rtnl.Conn) ([]rtnl.Rule, error) {
	rules, err := c.Rules(unix.AF_INET)
	if err != nil {
		return nil, err
	}
	more, err := c.Rules(unix.AF_INET6)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
		err = nil
	}
	return append(rules, more...), err
}
