// Package vrf is the CNI plugin vrf: puts an interface into a routing domain of its container.
package vrf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"

	"cnibox/applets/applet"
	"cnibox/applets/record"
	"cnibox/applets/result"
	"cnibox/rtnl"
	"cnibox/spec"
)

// Applet is the plugin.
var Applet = applet.Applet{
	Name:    "vrf",
	Conf:    conf{},
	Summary: "puts an interface into a routing domain of its container",
	Help: `
key      type    default           meaning
vrfname  string  -                 the VRF, which is created if missing (required)
table    int     first free        its routing table; an existing VRF must have it; from 1 on,
                                   but not 253, 254 and 255
dataDir  string  /run/cnibox/vrf   stores the owner of the interface until DEL

Addresses stay on the interface; its routes move to the table of the VRF. In cniVersion 1.1.0 the
result has the table of its routes; results of older versions omit them. The VRF is deleted with
its last interface.`,
	Verbs: func() spec.Verbs {
		return spec.Verbs{Since: spec.V031, Add: add, Check: check, Del: del, Get: get, Status: status, GC: gc, Records: record.At(dataDir), Chained: true, Validate: spec.ValidateBy(readConf)}
	},
}

const dataDir = "/run/cnibox/vrf"

// noVRFs is the error of ADD and STATUS on a kernel without VRFs.
const noVRFs = "vrf: this kernel has no VRFs (CONFIG_NET_VRF): %w"

// conf are the keys of vrf.
type conf struct {
	Name    string `json:"vrfname"`
	Table   int    `json:"table"` // 0: that of the VRF, else the first that is free
	DataDir string `json:"dataDir"`

	dir record.Dir
}

// readConf decodes and checks the configuration. Errors have code 7.
func readConf(r *spec.Request) (*conf, error) {
	c := &conf{}
	if err := r.Decode(c); err != nil {
		return nil, err
	}
	if err := spec.CheckIfName(c.Name); err != nil {
		e := &spec.Error{Code: spec.CodeConfig, Msg: fmt.Sprintf("configuration is expected to have a valid VRF name (vrfname): %v", err)}
		if c.Name == "" {
			return nil, e.WithDetails(`set "vrfname"`).AtKey("")
		}
		return nil, e.AtKey("vrfname")
	}
	if c.Table < 0 || c.Table > math.MaxInt32 || result.IsReservedTable(c.Table) {
		return nil, spec.Errorf(spec.CodeConfig, result.ReservedTableText, c.Table, math.MaxInt32).AtKey("table")
	}
	var err error
	c.dir, err = record.In(r.Call, c.DataDir, dataDir)
	return c, err
}

// add creates the VRF and moves the interface into it, under a lock of the namespace, or changes
// nothing. The result is prevResult, with the table of its routes.
func add(ctx context.Context, r *spec.Request) (*spec.Result, error) {
	c, err := readConf(r)
	if err != nil {
		return nil, err
	}
	if r.Prev == nil {
		return nil, spec.Errorf(spec.CodeConfig, "missing prevResult from earlier plugin: vrf works on the interface that it made")
	}
	v, err := open(r, spec.CodeConfig)
	if err != nil {
		return nil, err
	}
	defer v.Close()
	if err := v.Lock(ctx); err != nil {
		return nil, err
	}
	if err := v.undo.Failed(ctx, v.apply(ctx, c)); err != nil {
		return nil, err
	}
	result.SetTables(r, v.moved)
	return r.Prev, nil
}

// check finds the VRF with its table, the interface in it, and the addresses and
// routes of prevResult where they belong.
func check(_ context.Context, r *spec.Request) error {
	c, err := readConf(r)
	if err = cmp.Or(err, r.CheckIndexes()); err != nil {
		return err
	}
	v, err := open(r, spec.CodeCheck)
	if err != nil {
		return err
	}
	defer v.Close()
	vrf, err := v.Conn.Link(c.Name)
	if err != nil {
		return spec.Errorf(spec.CodeCheck, "VRF of %s: %w", r.IfName, err)
	}
	data, ok := vrf.Data.(rtnl.VRF)
	switch {
	case !ok:
		return spec.Errorf(spec.CodeCheck, "%s is of kind %q and no VRF", c.Name, vrf.Kind)
	case c.Table != 0 && c.Table != data.Table:
		return spec.Errorf(spec.CodeCheck, "VRF %s has table %d, not %d", c.Name, data.Table, c.Table)
	case !vrf.Up:
		return spec.Errorf(spec.CodeCheck, "VRF %s is down", c.Name)
	case v.Link.Master != vrf.Index:
		return spec.Errorf(spec.CodeCheck, "failed to find %s associated to vrf %s", r.IfName, c.Name)
	}
	return v.checkResult(r, data.Table)
}

// checkResult looks for the addresses and routes of prevResult. Routes that have no table
// in prevResult are in that of the VRF; the gateway of a default route is not compared.
func (v *membership) checkResult(r *spec.Request, table int) error {
	addrs, err := v.Conn.Addrs(v.Link.Index)
	if err != nil {
		return err
	}
	for _, ip := range r.Prev.Addresses(r.IfName, nil) {
		if !ownsAddr(addrs, ip.Address) {
			return spec.Errorf(spec.CodeCheck, "interface %s does not have address %s", r.IfName, ip.Address)
		}
	}
	routes, err := v.Conn.Routes(rtnl.RouteFilter{Table: rtnl.AllTables, Link: v.Link.Index})
	if err != nil {
		return err
	}
	var there []result.MovedRoute // all routes
	for _, rt := range routes {
		there = append(there, result.MovedRoute{Dst: rt.Dst, GW: rt.GW, To: rt.GW, Table: rt.Table})
	}
	for _, rt := range r.Prev.Routes {
		in := table
		if rt.Table != nil {
			in = *rt.Table
		}
		rt.Table = nil
		var of []result.MovedRoute
		for _, m := range there {
			if m.Table == in {
				of = append(of, m)
			}
		}
		if result.FindMoved(of, rt) == nil {
			return spec.Errorf(spec.CodeCheck, "route %s of %s is missing in table %d of its VRF", rt.Dst, r.IfName, in)
		}
	}
	return nil
}

// del removes the interface from its VRF, and deletes the VRF without interfaces. Neither the
// namespace nor the interface need exist, and without a valid configuration the VRF is that of the
// interface. An interface of another attachment stays.
func del(ctx context.Context, r *spec.Request) error {
	c, err := readConf(r)
	if err != nil {
		r.Warn("%v: %s leaves the VRF that it is in", err, r.IfName)
		c = nil
	}
	v, err := open(r, 0)
	if err != nil {
		return err
	}
	defer v.Close()
	dir, mine := record.Configured(r, dataDir), false
	if v.NS != nil {
		if err := v.Lock(ctx); err != nil {
			return err
		}
		if mine, err = v.mine(r, dir); err != nil {
			return err
		}
	}
	if mine {
		if err := v.leave(c); err != nil {
			return err
		}
	}
	return dir.Remove(record.Name(r.Attachment))
}

// mine reports whether the attachment has an interface in this namespace, or may have had one that
// is gone. Without a record, as after GC or of an earlier version, leave deletes no more than a VRF
// of this name without interfaces.
func (v *membership) mine(r *spec.Request, dir record.Dir) (bool, error) {
	rec := result.ReadRecord[result.Record](dir, r.Attachment)
	if v.Link != nil {
		return v.Owns(r, dir, rec)
	}
	if rec == nil {
		return true, nil
	}
	id, err := v.ID()
	return rec.SameNS(id), err
}

// leave removes the interface, if it exists, from the VRF, and deletes a VRF without interfaces; with
// c nil it is the VRF of the interface.
func (v *membership) leave(c *conf) error {
	links, err := v.Conn.Links()
	if err != nil {
		return err
	}
	var own *rtnl.Link
	for i, l := range links {
		if l.Kind == "vrf" && (c != nil && l.Name == c.Name || c == nil && v.Link != nil && l.Index == v.Link.Master) {
			own = &links[i]
		}
	}
	if own == nil {
		return nil
	}
	var errs []error
	others := false
	for _, l := range links {
		switch {
		case l.Master != own.Index:
		case v.Link != nil && l.Index == v.Link.Index:
			errs = append(errs, rtnl.SkipAbsent(v.Conn.SetLink(l.Index, rtnl.LinkChange{Master: new(uint32(0))})))
		default:
			others = true
		}
	}
	if !others {
		errs = append(errs, rtnl.SkipAbsent(v.Conn.Do(rtnl.DropLink(own.Index))))
	}
	return errors.Join(errs...)
}

// status creates a VRF in a new namespace. The code is 50.
func status(_ context.Context, r *spec.Request) error {
	c, err := readConf(r)
	if err != nil {
		return err
	}
	if err := c.dir.Ready(); err != nil {
		return err
	}
	err = rtnl.InNewNS(func(c *rtnl.Conn) error {
		return c.AddLink(rtnl.LinkSpec{Name: "vrf0", Kind: rtnl.VRF{Table: 1}})
	})
	if err != nil {
		return spec.Errorf(spec.CodeNotReady, noVRFs, err)
	}
	return nil
}

// gc deletes the records of attachments that are gone.
func gc(_ context.Context, r *spec.Request) error {
	return record.Configured(r, dataDir).DeleteStale(r.Network, r.Valid)
}

// get returns prevResult, see [result.Get].
func get(ctx context.Context, r *spec.Request) (*spec.Result, error) {
	return result.Get(ctx, r, result.Recorded(r, dataDir), check)
}
