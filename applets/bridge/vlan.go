package bridge

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/cnibox/cnibox/applets/attach"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// vlanMax is the highest VLAN identifier a port can have.
// 4095 is reserved (IEEE 802.1Q), and 0 is not a VLAN.
const vlanMax = 4094

// A vlanTrunk is a range of tagged VLANs, a single one, or both. Nil means absent: 0 is an error.
type vlanTrunk struct {
	MinID *int `json:"minID"`
	MaxID *int `json:"maxID"`
	ID    *int `json:"id"`
}

// filtersVLANs reports whether the bridge needs vlan_filtering.
func (p *plugin) filtersVLANs() bool { return p.VLAN != 0 || len(p.VLANTrunk) > 0 }

// validateVLANs checks "vlan" and "vlanTrunk".
func (p *plugin) validateVLANs() error {
	if p.VLAN < 0 || p.VLAN > vlanMax {
		return spec.KeyErrorf("vlan", "invalid VLAN ID %d: \"vlan\" is within 0 to %d", p.VLAN, vlanMax)
	}
	if gw := p.vlanGateway(); p.VLAN != 0 && p.IsGateway && len(gw) > 15 {
		return spec.KeyErrorf("bridge", "interface name %q of the VLAN's gateway is too long: shorten \"bridge\"", gw)
	}
	for i, t := range p.VLANTrunk {
		if err := t.validate(); err != nil {
			return spec.AtKey(fmt.Sprintf("vlanTrunk[%d]", i), err)
		}
	}
	return nil
}

// validate checks that a range has both bounds, in order, or neither.
func (t vlanTrunk) validate() error {
	for _, p := range []struct {
		name string
		id   *int
	}{{"minID", t.MinID}, {"maxID", t.MaxID}, {"id", t.ID}} {
		if p.id != nil && (*p.id < 1 || *p.id > vlanMax) {
			return spec.Errorf(spec.CodeConfig, "incorrect trunk %s parameter", p.name).
				WithDetails(`"%s" in "vlanTrunk" is %d: write a number from 1 to %d`, p.name, *p.id, vlanMax)
		}
	}
	switch {
	case t.MinID == nil && t.MaxID != nil:
		return errors.New("minID and maxID should be configured simultaneously, minID is missing")
	case t.MinID != nil && t.MaxID == nil:
		return errors.New("minID and maxID should be configured simultaneously, maxID is missing")
	case t.MinID != nil && *t.MinID > *t.MaxID:
		return spec.Errorf(spec.CodeConfig, "minID is greater than maxID in trunk parameter").
			WithDetails(`"vlanTrunk" has "minID" %d and "maxID" %d`, *t.MinID, *t.MaxID)
	}
	return nil
}

// wantedVLANs returns the VLANs of the port, sorted: the tagged ones of the trunk, and the untagged
// one, which is 1 if a trunk is given without "vlan". It joins adjacent VLANs to ranges: a trunk of
// 4,000 is one attribute.
func (p *plugin) wantedVLANs() []rtnl.VLANRange {
	var tagged [vlanMax + 1]bool
	for _, t := range p.VLANTrunk {
		if t.MinID != nil {
			for id := *t.MinID; id <= *t.MaxID; id++ {
				tagged[id] = true
			}
		}
		if t.ID != nil {
			tagged[*t.ID] = true
		}
	}
	pvid := p.VLAN
	if pvid == 0 {
		pvid = 1
	}
	tagged[pvid] = false
	var out []rtnl.VLANRange
	for id := 1; id <= vlanMax; id++ {
		switch {
		case id == pvid:
			out = append(out, rtnl.VLANRange{From: id, To: id, PVID: true, Untagged: true})
		case !tagged[id]:
		case len(out) > 0 && out[len(out)-1].To == id-1 && !out[len(out)-1].PVID:
			out[len(out)-1].To = id
		default:
			out = append(out, rtnl.VLANRange{From: id, To: id})
		}
	}
	return out
}

// portVLANs replaces the default VLAN of a new port, which is 1; with preserveDefaultVlan it adds
// to it.
func (p *plugin) portVLANs(port uint32) []rtnl.Op {
	add := rtnl.NewPortVLANs(port, p.wantedVLANs())
	if p.PreserveDefaultVLAN {
		return []rtnl.Op{add}
	}
	return []rtnl.Op{rtnl.DropPortVLANs(port, []rtnl.VLANRange{{From: 1, To: vlanMax}}), add}
}

// vlanGateway returns the name of the host's interface in the port's VLAN. It is the reference's,
// which other tools expect.
func (p *plugin) vlanGateway() string { return fmt.Sprintf("%s.%d", p.Bridge, p.VLAN) }

// ensureVLANGateway finds or creates the host's interface in the port's VLAN: a veth pair whose
// peer is an untagged port of the bridge. Like the reference no verb deletes it: other containers
// of the VLAN use it.
func (p *plugin) ensureVLANGateway(op *attach.Op) (*rtnl.Link, error) {
	br := op.Bridge
	gw, err := op.Host.Link(p.vlanGateway())
	if err == nil {
		return gw, p.rejoinVLANGateway(op, gw)
	}
	if !errors.Is(err, os.ErrNotExist) {
		return gw, err
	}
	names := attach.HostNames(spec.Attachment{Network: p.Bridge, IfName: p.vlanGateway()})
	port, err := op.Host.CreateLink(rtnl.LinkSpec{
		Name: names[0], MTU: br.MTU, MAC: attach.PortMAC(), Master: br.Index, Up: true,
		Peer: &rtnl.LinkSpec{Name: p.vlanGateway(), MTU: br.MTU},
	})
	if errors.Is(err, os.ErrExist) { // another ADD has created it meanwhile
		return op.Host.Link(p.vlanGateway())
	}
	if err != nil {
		return nil, fmt.Errorf("VLAN gateway %s: %w", p.vlanGateway(), err)
	}
	op.Undo("link "+p.vlanGateway(), func(context.Context) error {
		notThis := func(l *rtnl.Link) bool { return l.Index != port.Index }
		return whileUnused(op, br.Index, notThis, func() error { return op.Host.DelLink(port.Name) })
	})
	if err := op.Host.Do(p.gatewayVLAN(port.Index)...); err != nil {
		return nil, err
	}
	gw, err = op.Host.LinkAt(port.Parent)
	if err != nil {
		return nil, err
	}
	if err := op.IgnoreRouters(gw); err != nil { // before it can receive router advertisements
		return nil, err
	}
	gw.Up = true
	return gw, op.Host.SetLink(gw.Index, rtnl.LinkChange{Up: &gw.Up})
}

// gatewayVLAN removes a port of the bridge from all other VLANs.
func (p *plugin) gatewayVLAN(port uint32) []rtnl.Op {
	return []rtnl.Op{
		rtnl.DropPortVLANs(port, []rtnl.VLANRange{{From: 1, To: vlanMax}}),
		rtnl.NewPortVLANs(port, []rtnl.VLANRange{{From: p.VLAN, To: p.VLAN, PVID: true, Untagged: true}}),
	}
}

// rejoinVLANGateway adds the peer of the VLAN's veth pair to a bridge that was deleted and created
// again.
func (p *plugin) rejoinVLANGateway(op *attach.Op, gw *rtnl.Link) error {
	if gw.Kind != "veth" || gw.PeerNS {
		return nil
	}
	port, err := op.Host.LinkAt(gw.Parent)
	if err != nil || port.Master != 0 {
		return rtnl.SkipAbsent(err)
	}
	join := rtnl.ChangeLink(port.Index, rtnl.LinkChange{Master: &op.Bridge.Index, Up: new(true)})
	return op.Host.Do(append([]rtnl.Op{join}, p.gatewayVLAN(port.Index)...)...)
}
