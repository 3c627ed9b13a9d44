// Package sbr is the CNI plugin sbr: source based routing: packets leave by the interface of their source address.
package sbr

import (
	"errors"
	"fmt"
	"math"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/chained"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// Applet is the plugin.
var Applet = applet.Applet{
	Name:    "sbr",
	Conf:    conf{},
	Summary: "source based routing: what an interface's addresses send leaves by it",
	Help: `
key             type    default           meaning
table           int     -                 only add rules to this table, whose routes come
                                          from the IPAM plugin ("table" of a route); the other keys
                                          are ignored then; from 1 on, but not 253, 254 and 255
gateways        list    IPAM's            addresses of the default gateways, one of each family at
                                          most
addSourceHints  bool    false             keep the routes to the interface's own networks in the
                                          main table, with the address as source
dataDir         string  /run/cnibox/sbr   stores the rules until DEL

Each address of the interface gets a rule and a table of its own, the first that is free from 100
on, and the routes of the interface that fit the address move there from the main table. Link-local
routes stay. In cniVersion 1.1.0 the result has the tables of its routes; results of older versions
omit the routes that have moved.`,
	Plugin: func() spec.Plugin { return flow.Spec() },
}

var flow = chained.Plugin{
	DataDir: dataDir, Restores: true, Restored: "rules and tables set", Unchained: "This plugin must be called as chained plugin",
	New: func() chained.Driver { return new(conf) },
}

const dataDir = "/run/cnibox/sbr"

// firstTable is the lowest table that is tried, as in the reference.
const firstTable = 100

type conf struct {
	chained.Defaults
	chained.Stored
	Table          *int         `json:"table"` // nil: tables of our own
	Gateways       []netip.Addr `json:"gateways"`
	AddSourceHints bool         `json:"addSourceHints"`
}

// Validate checks the table and the gateways, and for ADD that prevResult has addresses.
func (c *conf) Validate(r *spec.Request) error {
	if c.Table != nil && (*c.Table < 1 || *c.Table > math.MaxInt32 || chained.IsReservedTable(*c.Table)) {
		return spec.KeyErrorf("table", chained.ReservedTableText, *c.Table, math.MaxInt32)
	}
	if len(c.Gateways) > 2 {
		return spec.KeyErrorf("gateways", "gateways list has more than 2 entries: %v", c.Gateways)
	}
	for i, g := range c.Gateways {
		switch {
		case !g.IsValid() || g.IsUnspecified() || g.IsMulticast() || g.Zone() != "" || g.Is4In6():
			return spec.KeyErrorf(fmt.Sprintf("gateways[%d]", i), "invalid static gateway %q", g)
		case i > 0 && g.Is4() == c.Gateways[0].Is4():
			return spec.KeyErrorf("gateways", "gateways list has multiple addresses of one family: %v", c.Gateways)
		}
	}
	if r.Prev == nil || r.Call.Verb != spec.Add {
		return nil
	}
	if err := r.CheckIndexes(); err != nil {
		return err
	}
	own := spec.Result{IPs: r.Prev.Addresses(r.IfName, nil)}
	if len(own.IPs) == 0 {
		return spec.Errorf(spec.CodeConfig, "No IP addresses supplied on interface: %s", r.IfName)
	}
	if err := own.CheckGateways(); err != nil {
		return fmt.Errorf("prevResult: %w", err)
	}
	return nil
}

// gateway returns the configured gateway of a family; zero: none.
func (c *conf) gateway(v4 bool) netip.Addr {
	for _, g := range c.Gateways {
		if g.Is4() == v4 {
			return g
		}
	}
	return netip.Addr{}
}

// sourceRule returns the rule from an address to a table.
func sourceRule(ip netip.Addr, table int) rtnl.Rule {
	return rtnl.Rule{Src: netip.PrefixFrom(ip, ip.BitLen()), Table: table}
}

// isSource reports whether a rule has the form of sourceRule, with any table.
func isSource(r rtnl.Rule) bool {
	want := sourceRule(r.Src.Addr(), r.Table)
	return r.Src == want.Src && !r.Dst.IsValid() && r.IIF == "" && r.OIF == "" && r.Mark == 0 && !r.More && r.Table != unix.RT_TABLE_LOCAL
}

// Release removes the rules on record, and empties their tables. A configured table keeps its other
// rules and all routes.
func (c *conf) Release(op *chained.Op) error {
	if op.NS == nil {
		return nil
	}
	s, err := open(op)
	if err != nil {
		return err
	}
	rules, err := s.ownRules()
	if err != nil {
		return err
	}
	var errs []error
	var kept []ownRule
	for _, m := range rules {
		if !op.Invalid && c.Table != nil && *c.Table != m.Table {
			kept = append(kept, m)
			continue
		}
		errs = append(errs, rtnl.SkipAbsent(s.Cont.Do(rtnl.DropRule(sourceRule(m.Src, m.Table)))))
		if (op.Invalid || c.Table == nil) && s.Link != nil {
			errs = append(errs, s.flushTable(m.Table))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return s.rewriteRecord(kept)
}

// flushTable deletes the interface's routes from a table. The main table is never emptied.
func (s *routing) flushTable(table int) error {
	if table < firstTable || chained.IsReservedTable(table) {
		return nil
	}
	routes, err := s.Cont.Routes(rtnl.RouteFilter{Table: table, Link: s.Link.Index})
	for _, rt := range routes {
		err = errors.Join(err, rtnl.SkipAbsent(s.Cont.Do(rtnl.DropRoute(rt))))
	}
	return err
}

// Probe reports a kernel without policy routing.
func (c *conf) Probe(op *chained.Op) error {
	if err := op.Dir.CheckWritable(); err != nil {
		return err
	}
	host, err := op.OnHost()
	if err != nil {
		return err
	}
	if _, err := host.Rules(unix.AF_INET); err != nil {
		return spec.Errorf(spec.CodeNotReady, "sbr: this kernel has no routing rules (CONFIG_IP_MULTIPLE_TABLES): %w", err)
	}
	return nil
}

// Holds returns the rules. Only a result of 1.1.0 has the tables of ADD.
func (c *conf) Holds(op *chained.Op) (all []spec.Holding) {
	for _, ip := range op.Prev.Addresses(op.IfName, nil) {
		text := fmt.Sprintf("rule from %s to a table of its own", ip.Address.Addr())
		if c.Table != nil {
			text = fmt.Sprintf("rule from %s to table %d", ip.Address.Addr(), *c.Table)
		}
		all = append(all, spec.Holding{Kind: "rule", Text: text, Data: ip.Address.Addr()})
	}
	return all
}
