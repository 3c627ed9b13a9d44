package attach

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// A hostState is the kernel's state of all attachments on the host.
type hostState struct {
	byIndex map[uint32]*rtnl.Link
	veths   map[string]*rtnl.Link    // with a label, by the owner's key
	others  map[string]*rtnl.Link    // veths without a label, by their name
	rules   map[string][]nft.Element // by the owner's key; nil: not read
	uplink  string                   // the link of the default route; empty: none
}

// holds returns what the attachment has on the host: its host-side veth with its master, or the
// parent of its interface, the addresses that are masqueraded, and the MAC address that the veth
// may send from. Except for a configured parent these are read from the kernel, once for all
// attachments of a session. holds does not enter the container, so an automatic
// parent is the one that ADD would use now.
func (p *Plugin) holds(ctx context.Context, r *spec.Request) (all []spec.Holding, err error) {
	h, err := session.Ask(r.Call.Session, hostStateKey{}, func() (*hostState, error) { return readHostState(r.Call.Session) })
	if err != nil {
		return nil, err
	}
	var link spec.HostLink
	if veth := h.hostVeth(r, p.Veth); veth != nil {
		link.Name = veth.Name
		if master := h.byIndex[veth.Master]; master != nil {
			link.Master = master.Name
		}
	} else if d, err := p.read(r); err == nil { // CHECK reports the error
		if own := d.Resources(); own.Stacked {
			link.Parent = cmp.Or(own.Parent, h.uplink)
		}
	}
	if link != (spec.HostLink{}) {
		all = append(all, spec.Holding{Kind: spec.KindHostLink, Text: hostLinkText(link), Data: link})
	}
	var masqueraded []netip.Addr
	for _, e := range h.rules[r.Key()] {
		switch addr, mac := e.Addr(), e.MAC(); {
		case mac != nil:
			all = append(all, spec.Holding{Kind: spec.KindMACGuard, Text: fmt.Sprintf("%s sends from %s alone", e.Link(), mac),
				Data: spec.MACGuard{Link: e.Link(), MAC: mac.String()}})
		case !slices.Contains(masqueraded, addr):
			masqueraded = append(masqueraded, addr)
			all = append(all, spec.Holding{Kind: "masquerade", Text: addr.String() + " masqueraded", Data: addr})
		}
	}
	return all, nil
}

// hostStateKey is the key of the state.
type hostStateKey struct{}

// readHostState reads the state from the kernel, without rules that it cannot or must not read.
func readHostState(s *session.Session) (*hostState, error) {
	conn, err := rtnl.OnHost(s)
	if err != nil {
		return nil, err
	}
	links, err := conn.Links()
	if err != nil {
		return nil, err
	}
	h := &hostState{byIndex: map[uint32]*rtnl.Link{}, veths: map[string]*rtnl.Link{}, others: map[string]*rtnl.Link{}}
	for i := range links {
		l := &links[i]
		h.byIndex[l.Index] = l
		switch key := spec.LabelKey(l.Alias); {
		case l.Kind != "veth":
		case key != "":
			h.veths[key] = l
		default:
			h.others[l.Name] = l
		}
	}
	if uplink, err := findMaster(conn, ""); err == nil {
		h.uplink = uplink.Name
	}
	if held, err := nft.In(s).Elements(nft.KindMasquerade, nft.KindMACGuard); err == nil {
		h.rules = map[string][]nft.Element{}
		for _, e := range held {
			h.rules[e.OwnerKey()] = append(h.rules[e.OwnerKey()], e)
		}
	}
	return h, nil
}

// hostVeth finds the host-side veth of an attachment by its label. A veth of the reference has no
// label and is found by the result. nil: not found.
func (h *hostState) hostVeth(r *spec.Request, pair bool) *rtnl.Link {
	if l := h.veths[r.Key()]; l != nil || !pair || r.Prev == nil {
		return l
	}
	for _, i := range r.Prev.Interfaces {
		if l := h.others[i.Name]; l != nil && i.Sandbox == "" {
			return l
		}
	}
	return nil
}

func hostLinkText(l spec.HostLink) string {
	switch {
	case l.Name == "":
		return "on " + l.Parent
	case l.Master != "":
		return "host side " + l.Name + ", port of " + l.Master
	}
	return "host side " + l.Name
}
