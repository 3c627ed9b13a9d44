package bridge

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/applets/attach"
	"github.com/cnibox/cnibox/applets/netfilter"
	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// Host makes the host the network's gateway and masquerades it. For many attachments it looks at
// each bridge and each gateway once. Rules are last, since they are one transaction.
func (p *plugin) Host(op *attach.Op) error {
	if op.Bridge == nil { // Link has not run
		if err := p.findBridge(op); err != nil {
			return err
		}
	}
	if err := p.setPort(op, false); err != nil {
		return err
	}
	if err := op.SetVethUp(); err != nil {
		return err
	}
	if err := p.ensureGateways(op); err != nil {
		return err
	}
	return p.addRules(op)
}

// findBridge is ensureBridge, once for many attachments.
func (p *plugin) findBridge(op *attach.Op) (err error) {
	key := bridgeMade{p.Bridge, p.PromiscMode, p.filtersVLANs()}
	op.Bridge, err = session.Ask(op.Call.Session, key, func() (*rtnl.Link, error) {
		err := p.ensureBridge(op)
		return op.Bridge, err
	})
	return err
}

// ensureGateways gives the bridge its addresses, once for many attachments.
func (p *plugin) ensureGateways(op *attach.Op) error {
	if !p.IsGateway || len(op.Result.IPs) == 0 {
		return nil
	}
	key := gatewaysSet{bridge: p.Bridge, vlan: p.VLAN}
	for _, ip := range op.Result.IPs {
		key.addresses += fmt.Sprintf(" %s/%d", ip.Gateway, ip.Address.Bits())
	}
	return session.Once(op.Call.Session, key, func() error { return p.setGateways(op) })
}

// bridgeMade is the key of a bridge that findBridge has made or found.
type bridgeMade struct {
	name          string
	promisc, vlan bool
}

// gatewaysSet is the key of what ensureGateways has done.
type gatewaysSet struct {
	bridge    string
	vlan      int
	addresses string
}

// addRules adds masquerading, and lets the port send from one MAC address only. A gateway becomes
// the only router of its port: router advertisements of the container, which its neighbours would
// accept, are dropped. On a kernel without bridge tables a gateway only masquerades.
func (p *plugin) addRules(op *attach.Op) error {
	var guard net.HardwareAddr // nil: no guard
	if p.MACSpoofChk && !p.guarded {
		guard, _ = op.Recorded(op.IfName, false)
	}
	if !p.IsGateway && guard == nil {
		return p.AddMasquerade(op)
	}
	add := func(x *nft.Tx) {
		if guard != nil {
			x.GuardMAC(op.Attachment, op.Veth.Name, guard)
		}
		if p.IsGateway {
			x.DropAdverts(op.Attachment, op.Veth.Name)
		}
		p.Masquerade(op, op.Result.IPs, x)
	}
	return op.AddRules(op.Call.Session, add, func(err error) error {
		if !netfilter.IsMissing(err) || guard != nil {
			return err
		}
		op.Warn("router advertisements of this container may reach its neighbours: %v", err)
		return p.AddMasquerade(op)
	})
}

// Release deletes the elements for the addresses and the port.
func (p *plugin) Release(op *attach.Op) error { return op.ReleaseRules(p.known(op)) }

// known names the elements of addRules that prevResult shows; nil: it does not show all, as of a port that was renamed,
// or the configuration was not valid.
func (p *plugin) known(op *attach.Op) nft.Known {
	port, mac := p.portOf(op)
	if port == "" || mac == nil || p.Bridge == "" || op.Veth != nil && op.Veth.Name != port {
		return nil
	}
	known := p.MasqConf.Known(op)
	if p.IPMasq && known == nil {
		return nil
	}
	adverts, guard := nft.KnownAdverts(port), nft.KnownGuard(port, mac)
	if !p.IsGateway {
		adverts = adverts.IfAny()
	}
	if !p.MACSpoofChk {
		guard = guard.IfAny()
	}
	return slices.Concat(known, adverts, guard)
}

// portOf returns the host-side veth and the container's MAC address in prevResult; empty and nil: not there.
func (p *plugin) portOf(op *attach.Op) (port string, mac net.HardwareAddr) {
	if op.Prev == nil {
		return "", nil
	}
	for _, i := range op.Prev.Interfaces {
		switch {
		case i.Sandbox == "" && slices.Contains(attach.HostNames(op.Attachment), i.Name):
			port = i.Name
		case i.Sandbox != "" && i.Name == op.IfName:
			mac, _ = spec.HardwareAddr(i.MAC)
		}
	}
	return port, mac
}

// setGateways adds each gateway address to the bridge, or to the interface of its VLAN, with the
// prefix length of the container's address. The host thereby gets its route.
func (p *plugin) setGateways(op *attach.Op) error {
	gw, err := op.Bridge, error(nil)
	if p.VLAN != 0 {
		if gw, err = p.ensureVLANGateway(op); err != nil {
			return err
		}
		op.AddInterface(attach.HostInterface(gw))
	}
	have, err := op.Host.Addrs(gw.Index)
	if err != nil {
		return err
	}
	var want []netip.Prefix
	for _, ip := range op.Result.IPs {
		want = append(want, netip.PrefixFrom(ip.Gateway, ip.Address.Bits()))
	}
	ops, err := p.gatewayOps(op, gw, have, want)
	if err != nil || ops == nil {
		return err
	}
	op.Undo("addresses of "+gw.Name, func(context.Context) error { return p.restoreAddrs(op, gw.Index, have) })
	if !p.newBridge { // then ports do not change it
		ops = append(ops, rtnl.ChangeLink(gw.Index, rtnl.LinkChange{MAC: gw.MAC}))
	}
	if err := op.Host.Do(ops...); err != nil {
		return attach.ExplainIPv6Disabled(err, gw.Name)
	}
	for i, w := range want {
		if !attach.HasAddr(have, w) && !slices.Contains(want[:i], w) {
			op.Did("address %s added to %s", w, gw.Name)
		}
	}
	return nil
}

// Prepare creates the bridge, before there is an attachment. A gateway gets the address of the
// first range of each family, unless it has one of that family, such as that of another range.
func (p *plugin) Prepare(op *attach.Op) error {
	if err := p.ensureBridge(op); err != nil || !p.IsGateway || op.Net.IPAM.Type == "" {
		return err
	}
	resources, err := op.Validate(op.Net.IPAM.Type)
	if err != nil {
		return err
	}
	have, err := op.Host.Addrs(op.Bridge.Index)
	if err != nil {
		return err
	}
	given := map[bool]bool{} // by Is4
	for _, h := range have {
		given[h.Prefix.Addr().Is4()] = given[h.Prefix.Addr().Is4()] || !h.Prefix.Addr().IsLinkLocalUnicast()
	}
	for _, r := range resources.Ranges {
		gw := r.Gateway
		if !gw.IsValid() {
			gw = r.Subnet.Masked().Addr().Next()
		}
		if !given[gw.Is4()] {
			given[gw.Is4()] = true
			op.Result.IPs = append(op.Result.IPs, spec.IP{Address: netip.PrefixFrom(gw, r.Subnet.Bits()), Gateway: gw})
		}
	}
	if op.Result.IPs == nil {
		return nil
	}
	return p.setGateways(op)
}

// gatewayOps adds the missing addresses. Another IPv4 address, or an IPv6 address of an overlapping
// subnet, conflicts with them. It is deleted with forceAddress, and if nothing uses its subnet any
// more.
func (p *plugin) gatewayOps(op *attach.Op, gw *rtnl.Link, have []rtnl.Addr, want []netip.Prefix) ([]rtnl.Op, error) {
	var ops []rtnl.Op
	var stale []netip.Prefix
	for _, h := range have {
		w, conflict := conflicting(h.Prefix, want)
		if !conflict {
			continue
		}
		if !p.ForceAddress {
			user, err := userOf(op, gw, h.Prefix)
			if err != nil {
				return nil, err
			}
			if user != "" {
				return nil, spec.Errorf(spec.CodeConfig, "%q already has an IP address different from %s", gw.Name, w).
					WithDetails("%s", advice(gw.Name, h.Prefix, user))
			}
			stale = append(stale, h.Prefix)
		}
		// Backwards: deleting one may delete later ones, see [rtnl.DropAddr].
		ops = append([]rtnl.Op{rtnl.DropAddr(gw.Index, h)}, ops...)
	}
	if stale != nil {
		op.Warn("%s had the address of a subnet that nothing uses any more, %s: replaced by %s", gw.Name, stale, want)
	}
	drops := ops != nil
	for i, w := range want {
		if (drops || !attach.HasAddr(have, w)) && !slices.Contains(want[:i], w) {
			// another ADD may add the same address
			ops = append(ops, rtnl.ReplaceAddr(gw.Index, rtnl.Addr{Prefix: w, NoDAD: true}))
		}
	}
	return ops, nil
}

// conflicting reports whether an address of the bridge conflicts with the gateways, and with which
// one. The gateways of one result do not conflict with each other.
func conflicting(have netip.Prefix, want []netip.Prefix) (netip.Prefix, bool) {
	if slices.Contains(want, have) || have.Addr().IsLinkLocalUnicast() {
		return netip.Prefix{}, false
	}
	for _, w := range want {
		if w.Addr().Is4() == have.Addr().Is4() && (have.Addr().Is4() || w.Overlaps(have)) {
			return w, true
		}
	}
	return netip.Prefix{}, false
}

// restoreAddrs restores the addresses of the gateway's link. It always adds deleted addresses
// again, since older ports need them. It deletes added addresses unless other ports use them: any
// port, or, if they had replaced another address, only newer ports, which have higher indexes.
// Link-local addresses are the kernel's.
func (p *plugin) restoreAddrs(op *attach.Op, index uint32, former []rtnl.Addr) error {
	now, err := op.Host.Addrs(index)
	if err != nil {
		return err
	}
	var added, taken []rtnl.Op
	for _, a := range now {
		if !attach.HasAddr(former, a.Prefix) && !a.Prefix.Addr().IsLinkLocalUnicast() {
			added = append(added, rtnl.DropAddr(index, a))
		}
	}
	for _, a := range former {
		if !attach.HasAddr(now, a.Prefix) {
			taken = append(taken, rtnl.NewAddr(index, a))
		}
	}
	others := func(l *rtnl.Link) bool { return taken == nil || l.Index > op.Veth.Index }
	err = whileUnused(op, op.Bridge.Index, others, func() error { return op.Host.Do(added...) })
	return errors.Join(err, op.Host.Do(taken...))
}

// whileUnused undoes a change to a bridge unless ports of other attachments use it: those for which
// others returns true; nil: all.
func whileUnused(op *attach.Op, bridge uint32, others func(*rtnl.Link) bool, undo func() error) error {
	links, err := op.Host.Links()
	if err != nil {
		return err
	}
	for _, l := range links {
		if l.Master == bridge && spec.LabelKey(l.Alias) != op.Key() && (others == nil || others(&l)) {
			return nil
		}
	}
	return undo()
}

// dropUnusedBridge deletes a bridge that this ADD created, unless it has other ports now.
func dropUnusedBridge(op *attach.Op, index uint32) error {
	return whileUnused(op, index, nil, func() error { return op.Host.Do(rtnl.DropLink(index)) })
}
