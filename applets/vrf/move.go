package vrf

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/chained"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// settleTime bounds the wait of an ADD for duplicate detection of the addresses that it restored.
const settleTime = 3 * time.Second

// ownsAddr looks for an address with its prefix length, and ignores duplicates.
func ownsAddr(addrs []rtnl.Addr, want netip.Prefix) bool {
	return slices.ContainsFunc(addrs, func(a rtnl.Addr) bool { return a.Prefix == want && !a.DADFailed })
}

// A membership is the interface that ADD moves.
type membership struct{ *chained.Op }

// Apply creates the VRF, and moves the interface into it. The result has the table of its routes.
func (c *conf) Apply(op *chained.Op) error {
	ctx := op.Context()
	v := membership{op}
	if err := op.Record(); err != nil {
		return err
	}
	vrf, table, err := v.ensureVRF(c)
	if err != nil {
		return err
	}
	switch op.Link.Master {
	case vrf:
	case 0:
		err = v.enslave(ctx, vrf, table)
	default:
		err = spec.Errorf(spec.CodeConfig, "interface %s has already a master set: link #%d; it can be in one VRF or bridge alone", op.IfName, op.Link.Master)
	}
	if err != nil {
		return err
	}
	routes, err := op.Cont.Routes(rtnl.RouteFilter{Table: table, Link: op.Link.Index})
	if err != nil {
		return err
	}
	chained.SetTables(op.Request, asMoved(routes))
	return nil
}

// asMoved returns routes in the form of moved routes, with their tables.
func asMoved(routes []rtnl.Route) (moved []chained.MovedRoute) {
	for _, r := range routes {
		moved = append(moved, chained.MovedRoute{Dst: r.Dst, GW: r.GW, To: r.GW, Table: r.Table})
	}
	return moved
}

// ensureVRF returns the index and the table of the VRF, which it creates if missing.
func (v membership) ensureVRF(c *conf) (index uint32, table int, err error) {
	l, err := v.Cont.Link(c.Name)
	if err == nil {
		data, ok := l.Data.(rtnl.VRF)
		switch {
		case !ok:
			return 0, 0, spec.Errorf(spec.CodeConfig, "interface %s exists and is of kind %q, not a VRF", c.Name, l.Kind)
		case c.Table != 0 && c.Table != data.Table:
			return 0, 0, spec.Errorf(spec.CodeConfig, "VRF %s already exist with different routing table %d: %d is asked for", c.Name, data.Table, c.Table)
		case !l.Up:
			v.Undo("VRF "+c.Name, func(context.Context) error { return v.Cont.SetLink(l.Index, rtnl.LinkChange{Up: new(false)}) })
			err = v.Cont.SetLink(l.Index, rtnl.LinkChange{Up: new(true)})
		}
		return l.Index, data.Table, err
	}
	if !errors.Is(err, os.ErrNotExist) {
		return 0, 0, err
	}
	if table = c.Table; table == 0 {
		rules, err := chained.AllRules(v.Cont)
		if err != nil {
			return 0, 0, err
		}
		used, err := chained.UsedTables(v.Cont, rules)
		if err != nil {
			return 0, 0, err
		}
		table = chained.FreeTable(used, 1)
	}
	l, err = v.Cont.CreateLink(rtnl.LinkSpec{Name: c.Name, Kind: rtnl.VRF{Table: table}, Up: true})
	if errors.Is(err, errors.ErrUnsupported) {
		return 0, 0, spec.Errorf(spec.CodeNotReady, noVRFs, err)
	}
	if err != nil {
		return 0, 0, err
	}
	v.Undo("VRF "+c.Name, func(context.Context) error { return v.Cont.DelLink(c.Name) })
	return l.Index, table, nil
}

// enslave moves the interface into the VRF. The kernel sets the link down and up for that. This
// deletes its routes, except those of the kernel, and without keep_addr_on_down its IPv6 addresses.
func (v membership) enslave(ctx context.Context, index uint32, table int) error {
	addrs, routes, err := v.currentConfig()
	if err != nil {
		return err
	}
	v.Undo("master of "+v.IfName, func(context.Context) error {
		err := v.Cont.SetLink(v.Link.Index, rtnl.LinkChange{Master: new(uint32(0))})
		return errors.Join(err, v.restore(addrs, routes))
	})
	if err := v.Cont.SetLink(v.Link.Index, rtnl.LinkChange{Master: &index}); err != nil {
		return err
	}
	ordered := slices.Clone(routes)
	for i := range ordered {
		if ordered[i].Table == unix.RT_TABLE_MAIN {
			ordered[i].Table = table
		}
	}
	if err := v.restore(addrs, ordered); err != nil {
		return err
	}
	return v.waitDAD(ctx)
}

// currentConfig returns the interface's addresses, and its routes in all tables that the kernel
// does not add itself, those without a gateway first.
func (v membership) currentConfig() (addrs []rtnl.Addr, routes []rtnl.Route, err error) {
	if addrs, err = v.Cont.Addrs(v.Link.Index); err != nil {
		return nil, nil, err
	}
	all, err := v.Cont.Routes(rtnl.RouteFilter{Table: rtnl.AllTables, Link: v.Link.Index})
	for _, far := range []bool{false, true} {
		for _, r := range all {
			if r.Protocol != unix.RTPROT_KERNEL && r.Table != unix.RT_TABLE_LOCAL && r.GW.IsValid() == far {
				routes = append(routes, r)
			}
		}
	}
	return addrs, routes, err
}

// restore adds the deleted addresses and routes again. Addresses that were in use do not need
// duplicate detection.
func (v membership) restore(addrs []rtnl.Addr, routes []rtnl.Route) error {
	have, err := v.Cont.Addrs(v.Link.Index)
	if err != nil {
		return err
	}
	var ops []rtnl.Op
	for _, a := range addrs {
		if ownsAddr(have, a.Prefix) || a.Prefix.Addr().IsLinkLocalUnicast() && a.Prefix.Addr().Is6() {
			continue
		}
		a.NoDAD = !a.Tentative
		ops = append(ops, rtnl.NewAddr(v.Link.Index, a))
	}
	existing, err := v.Cont.Routes(rtnl.RouteFilter{Table: rtnl.AllTables, Link: v.Link.Index})
	if err != nil {
		return err
	}
	for _, r := range routes {
		same := func(o rtnl.Route) bool {
			return o.Dst == r.Dst && o.GW == r.GW && o.Table == r.Table && o.Priority == r.Priority
		}
		if !slices.ContainsFunc(existing, same) {
			ops = append(ops, rtnl.AppendRoute(r))
		}
	}
	return v.Cont.Do(ops...)
}

// waitDAD waits for addresses that the kernel checks for duplicates again, such as those that it
// kept while the link was down. Without a carrier this does not end, so a timeout is not an error.
func (v membership) waitDAD(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	err := v.Cont.WaitAddrs(ctx, v.Link.Index)
	if err != nil && ctx.Err() != nil {
		v.Warn("%v", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("addresses of %s: %w", v.IfName, err)
	}
	return nil
}
