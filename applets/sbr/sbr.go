// Package sbr is the CNI plugin sbr: source based routing: packets leave by the interface of their source address.
package sbr

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"

	"golang.org/x/sys/unix"

	"cnibox/applets/applet"
	"cnibox/applets/chained"
	"cnibox/applets/record"
	"cnibox/rtnl"
	"cnibox/spec"
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
	Verbs: func() spec.Verbs {
		return spec.Verbs{Add: add, Check: check, Del: del, Get: get, Status: status, GC: gc, Records: record.At(dataDir), Chained: true, Validate: spec.ValidateBy(readConf)}
	},
}

const dataDir = "/run/cnibox/sbr"

// firstTable is the first table that is tried, the reference's.
const firstTable = 100

// conf are the keys of sbr.
type conf struct {
	Table          *int         `json:"table"` // nil: tables of our own
	Gateways       []netip.Addr `json:"gateways"`
	AddSourceHints bool         `json:"addSourceHints"`
	DataDir        string       `json:"dataDir"`

	dir record.Dir
}

// readConf decodes and checks the configuration. Errors have code 7.
func readConf(r *spec.Request) (*conf, error) {
	c := &conf{}
	if err := r.Decode(c); err != nil {
		return nil, err
	}
	if err := c.validate(); err != nil {
		return nil, spec.Errorf(spec.CodeConfig, "%w", err)
	}
	var err error
	c.dir, err = record.In(r.Call, c.DataDir, dataDir)
	return c, err
}

// validate bounds the table and the gateways.
func (c *conf) validate() error {
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
	return nil
}

// gateway is the one of the configuration for a family; zero: none.
func (c *conf) gateway(v4 bool) netip.Addr {
	for _, g := range c.Gateways {
		if g.Is4() == v4 {
			return g
		}
	}
	return netip.Addr{}
}

// sourceRule is the rule from an address to a table.
func sourceRule(ip netip.Addr, table int) rtnl.Rule {
	return rtnl.Rule{Src: netip.PrefixFrom(ip, ip.BitLen()), Table: table}
}

// isSource reports whether a rule has the form of sourceRule, with any table.
func isSource(r rtnl.Rule) bool {
	want := sourceRule(r.Src.Addr(), r.Table)
	return r.Src == want.Src && !r.Dst.IsValid() && r.IIF == "" && r.OIF == "" && r.Mark == 0 && !r.More && r.Table != unix.RT_TABLE_LOCAL
}

// add adds rules and moves routes, under a lock of the namespace, or changes nothing. The result is prevResult, with the tables of the routes that have moved.
func add(ctx context.Context, r *spec.Request) (*spec.Result, error) {
	c, err := readConf(r)
	if err != nil {
		return nil, err
	}
	if r.Prev == nil {
		return nil, spec.Errorf(spec.CodeConfig, "This plugin must be called as chained plugin").
			WithDetails("sbr needs the prevResult with the addresses of %s", r.IfName)
	}
	if err := r.CheckIndexes(); err != nil {
		return nil, err
	}
	ips := r.Prev.Addresses(r.IfName, nil)
	if len(ips) == 0 {
		return nil, spec.Errorf(spec.CodeConfig, "No IP addresses supplied on interface: %s", r.IfName)
	}
	s, err := open(r, spec.CodeConfig)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	if err := s.Lock(ctx); err != nil {
		return nil, err
	}
	if err := s.undo.Failed(ctx, s.apply(r, c, ips)); err != nil {
		return nil, err
	}
	chained.SetTables(r, s.moved)
	return r.Prev, nil
}

// del removes the rules that are on record, and empties their tables. The namespace may
// be gone, and the interface. With a table of the configuration's, other rules and all
// routes stay.
func del(ctx context.Context, r *spec.Request) error {
	c, err := readConf(r)
	if err != nil {
		r.Warn("%v: the rules of the addresses of %s are removed all the same", err, r.IfName)
		c = &conf{}
	}
	dir := record.Configured(r, dataDir)
	s, err := open(r, 0)
	if err != nil {
		return err
	}
	if s.NS == nil {
		return dir.Remove(record.Name(r.Attachment))
	}
	defer s.Close()
	if err := s.Lock(ctx); err != nil {
		return err
	}
	mine, err := s.made(r, dir)
	if err != nil {
		return err
	}
	var errs []error
	var kept []madeRule
	for _, m := range mine {
		if c.Table != nil && *c.Table != m.Table {
			kept = append(kept, m)
			continue
		}
		errs = append(errs, rtnl.SkipAbsent(s.Conn.Do(rtnl.DropRule(sourceRule(m.Src, m.Table)))))
		if c.Table == nil && s.Link != nil {
			errs = append(errs, s.empty(m.Table))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return s.note(r, dir, kept)
}

// empty deletes the interface's routes from a table. The main table is never emptied.
func (s *routing) empty(table int) error {
	if table < firstTable || chained.IsReservedTable(table) {
		return nil
	}
	routes, err := s.Conn.Routes(rtnl.RouteFilter{Table: table, Link: s.Link.Index})
	for _, rt := range routes {
		err = errors.Join(err, rtnl.SkipAbsent(s.Conn.Do(rtnl.DropRoute(rt))))
	}
	return err
}

// status reports a kernel without policy routing. The code is 50.
func status(_ context.Context, r *spec.Request) error {
	c, err := readConf(r)
	if err != nil {
		return err
	}
	if err := c.dir.Ready(); err != nil {
		return err
	}
	host, err := rtnl.Dial(rtnl.Host())
	if err != nil {
		return err
	}
	defer host.Close()
	if _, err := host.Rules(unix.AF_INET); err != nil {
		return spec.Errorf(spec.CodeNotReady, "sbr: this kernel has no routing rules (CONFIG_IP_MULTIPLE_TABLES): %w", err)
	}
	return nil
}

// gc deletes the records of attachments that are gone.
func gc(_ context.Context, r *spec.Request) error {
	return record.Configured(r, dataDir).DeleteStale(r.Network, r.Valid)
}

// get returns prevResult, see [chained.Get].
func get(ctx context.Context, r *spec.Request) (*spec.Result, error) {
	return chained.Get(ctx, r, chained.Recorded(r, dataDir), check)
}
