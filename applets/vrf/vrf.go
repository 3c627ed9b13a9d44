// Package vrf is the CNI plugin vrf: puts an interface into a routing domain of its container.
package vrf

import (
	"errors"
	"fmt"
	"math"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/chained"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
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
	Plugin: func() spec.Plugin { return flow.Spec() },
}

var flow = chained.Plugin{
	Facts: spec.Facts{Since: spec.Version{Minor: 3, Patch: 1}}, DataDir: dataDir, Unchained: "missing prevResult from earlier plugin",
	New: func() chained.Driver { return new(conf) },
}

const dataDir = "/run/cnibox/vrf"

// noVRFs is the error of ADD and STATUS on a kernel without VRFs.
const noVRFs = "vrf: this kernel has no VRFs (CONFIG_NET_VRF): %w"

type conf struct {
	chained.Defaults
	chained.Stored
	Name  string `json:"vrfname"`
	Table int    `json:"table"` // 0: that of the VRF, else the first free one
}

// Validate checks the name and the table.
func (c *conf) Validate(*spec.Request) error {
	if err := spec.CheckIfName(c.Name); err != nil {
		e := &spec.Error{Code: spec.CodeConfig, Msg: fmt.Sprintf("configuration is expected to have a valid VRF name (vrfname): %v", err)}
		if c.Name == "" {
			return e.WithDetails(`set "vrfname"`).AtKey("")
		}
		return e.AtKey("vrfname")
	}
	if c.Table < 0 || c.Table > math.MaxInt32 || chained.IsReservedTable(c.Table) {
		return spec.KeyErrorf("table", chained.ReservedTableText, c.Table, math.MaxInt32)
	}
	return nil
}

// Check looks for the VRF with its table, the interface in it, and the addresses and routes of
// prevResult in their tables.
func (c *conf) Check(op *chained.Op) error {
	if err := op.CheckIndexes(); err != nil {
		return err
	}
	vrf, err := op.Cont.Link(c.Name)
	if err != nil {
		return spec.Errorf(spec.CodeCheck, "VRF of %s: %w", op.IfName, err)
	}
	data, ok := vrf.Data.(rtnl.VRF)
	switch {
	case !ok:
		return spec.Errorf(spec.CodeCheck, "%s is of kind %q, not a VRF", c.Name, vrf.Kind)
	case c.Table != 0 && c.Table != data.Table:
		return spec.Errorf(spec.CodeCheck, "VRF %s has table %d, not %d", c.Name, data.Table, c.Table)
	case !vrf.Up:
		return spec.Errorf(spec.CodeCheck, "VRF %s is down", c.Name)
	case op.Link.Master != vrf.Index:
		return spec.Errorf(spec.CodeCheck, "failed to find %s associated to vrf %s", op.IfName, c.Name)
	}
	return checkResult(op, data.Table)
}

// checkResult looks for the addresses and routes of prevResult. Routes without a table in
// prevResult are in the VRF's table. It does not compare the gateway of a default route.
func checkResult(op *chained.Op, table int) error {
	addrs, err := op.Cont.Addrs(op.Link.Index)
	if err != nil {
		return err
	}
	for _, ip := range op.Prev.Addresses(op.IfName, nil) {
		if !ownsAddr(addrs, ip.Address) {
			return spec.Errorf(spec.CodeCheck, "interface %s does not have address %s", op.IfName, ip.Address)
		}
	}
	routes, err := op.Cont.Routes(rtnl.RouteFilter{Table: rtnl.AllTables, Link: op.Link.Index})
	if err != nil {
		return err
	}
	found := asMoved(routes)
	for _, rt := range op.Prev.Routes {
		in := table
		if rt.Table != nil {
			in = *rt.Table
		}
		rt.Table = nil
		var moved []chained.MovedRoute
		for _, m := range found {
			if m.Table == in {
				moved = append(moved, m)
			}
		}
		if chained.FindMoved(moved, rt) == nil {
			return spec.Errorf(spec.CodeCheck, "route %s of %s is missing in table %d of its VRF", rt.Dst, op.IfName, in)
		}
	}
	return nil
}

// Release removes the interface from its VRF, and deletes the VRF if that has no other interfaces.
// If the configuration is invalid it uses the VRF of the interface. Without a record, as after GC,
// it only deletes a VRF of this name that has no interfaces.
func (c *conf) Release(op *chained.Op) error {
	if op.NS == nil {
		return nil
	}
	rec := op.Dir.Head(op.Attachment)
	if op.Link == nil && rec != nil {
		if id, err := op.ID(); err != nil || !rec.SameNS(id) {
			return err
		}
	}
	if _, err := op.Owned(rec); err != nil || op.Foreign {
		return err
	}
	links, err := op.Cont.Links()
	if err != nil {
		return err
	}
	var own *rtnl.Link
	for i, l := range links {
		if l.Kind == "vrf" && (!op.Invalid && l.Name == c.Name || op.Invalid && op.Link != nil && l.Index == op.Link.Master) {
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
		case op.Link != nil && l.Index == op.Link.Index:
			errs = append(errs, rtnl.SkipAbsent(op.Cont.SetLink(l.Index, rtnl.LinkChange{Master: new(uint32(0))})))
		default:
			others = true
		}
	}
	if !others {
		errs = append(errs, rtnl.SkipAbsent(op.Cont.Do(rtnl.DropLink(own.Index))))
	}
	return errors.Join(errs...)
}

// Probe creates a VRF in a new namespace.
func (c *conf) Probe(op *chained.Op) error {
	if err := op.Dir.CheckWritable(); err != nil {
		return err
	}
	err := rtnl.InNewNS(func(c *rtnl.Conn) error {
		return c.AddLink(rtnl.LinkSpec{Name: "vrf0", Kind: rtnl.VRF{Table: 1}})
	})
	if err != nil {
		return spec.Errorf(spec.CodeNotReady, noVRFs, err)
	}
	return nil
}

// Holds returns the membership.
func (c *conf) Holds(*chained.Op) []spec.Holding {
	text := "in VRF " + c.Name
	if c.Table != 0 {
		text += fmt.Sprintf(" with table %d", c.Table)
	}
	return []spec.Holding{{Kind: "vrf", Text: text, Data: c.Name}}
}
