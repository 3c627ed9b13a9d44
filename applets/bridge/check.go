package bridge

import (
	"errors"
	"net/netip"
	"os"
	"slices"

	"github.com/cnibox/cnibox/applets/attach"
	"github.com/cnibox/cnibox/applets/netfilter"
	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// Check checks the host's side of a port: the bridge, the flags and VLANs of the host-side veth,
// the gateway addresses, and the elements in the rule set.
func (p *plugin) Check(op *attach.Op) (err error) {
	if op.Bridge, err = op.SharedLink(p.Bridge); err != nil {
		return attach.Mismatch("bridge: %w", err)
	}
	for _, step := range [...]func(*attach.Op) error{p.checkBridge, p.checkPort, p.checkGateways, p.checkRules} {
		if err := step(op); err != nil {
			return err
		}
	}
	return nil
}

// checkBridge compares the bridge, except for its MAC address, which may follow its ports.
// Promiscuous mode may be on for another network.
func (p *plugin) checkBridge(op *attach.Op) error {
	br := op.Bridge
	if br.Kind != "bridge" {
		return attach.Mismatch("%s is of kind %q, not a bridge", p.Bridge, br.Kind)
	}
	if !br.Up {
		return attach.Mismatch("bridge %s is down", p.Bridge)
	}
	if p.PromiscMode && !br.Promisc {
		return attach.Mismatch("bridge %s is not in promiscuous mode", p.Bridge)
	}
	return nil
}

// checkPort compares the host-side veth and its bridge.
func (p *plugin) checkPort(op *attach.Op) error {
	host, br := op.Veth, op.Bridge
	switch {
	case host.Master != br.Index:
		return attach.Mismatch("%s is not a port of bridge %s", host.Name, p.Bridge)
	case host.Hairpin != p.HairpinMode:
		return attach.Mismatch("%s: hairpin mode is %t, not %t", host.Name, host.Hairpin, p.HairpinMode)
	case p.PortIsolation && !host.Isolated: // the firewall plugin sets it too
		return attach.Mismatch("%s: port isolation is off", host.Name)
	}
	for _, i := range op.Prev.Interfaces {
		if i.Name == host.Name && i.Sandbox == "" {
			if err := attach.CheckMAC(host, i.MAC); err != nil {
				return err
			}
		}
	}
	if !p.filtersVLANs() {
		return nil
	}
	if !br.VLANFiltering { // the port's VLANs exist, without effect
		return attach.Mismatch("bridge %s does not filter VLANs", p.Bridge)
	}
	return p.checkVLANs(op)
}

// checkVLANs looks for each configured VLAN on the port, which may have others.
func (p *plugin) checkVLANs(op *attach.Op) error {
	have, err := op.Host.PortVLANs(op.Veth.Index)
	if err != nil {
		return err
	}
	var tagged, pvid [vlanMax + 1]bool
	for _, r := range have {
		for id := r.From; id <= r.To && id <= vlanMax; id++ {
			tagged[id], pvid[id] = true, r.PVID
		}
	}
	for _, r := range p.wantedVLANs() {
		for id := r.From; id <= r.To; id++ {
			if !tagged[id] || r.PVID && !pvid[id] {
				return attach.Mismatch("%s: VLAN %d is missing on the port", op.Veth.Name, id)
			}
		}
	}
	return nil
}

// checkGateways looks for the gateway of each address on the bridge or on the interface of its
// VLAN.
func (p *plugin) checkGateways(op *attach.Op) error {
	own := op.OwnAddresses()
	if !p.IsGateway || len(own) == 0 {
		return nil
	}
	gw := op.Bridge
	if p.VLAN != 0 {
		var err error
		if gw, err = op.SharedLink(p.vlanGateway()); err != nil {
			return attach.Mismatch("VLAN gateway: %w", err)
		}
	}
	have, err := session.Ask(op.Call.Session, addressesOf(gw.Index), func() ([]rtnl.Addr, error) { return op.Host.Addrs(gw.Index) })
	if err != nil {
		return err
	}
	for _, ip := range own {
		if ip.Gateway.IsValid() && !hasGateway(have, ip) {
			return attach.Mismatch("%s does not have the gateway address %s", gw.Name, ip.Gateway)
		}
	}
	return nil
}

// hasGateway looks for the address, with any prefix length.
func hasGateway(have []rtnl.Addr, ip spec.IP) bool {
	for _, a := range have {
		if a.Prefix.Addr() == ip.Gateway {
			return true
		}
	}
	return false
}

// checkRules looks for the elements that ADD added to the rule set. The guarded address is the link's present
// one: tuning moves the guard, and other plugins that change the address cut the container off.
func (p *plugin) checkRules(op *attach.Op) error {
	if err := p.CheckMasquerade(op); err != nil {
		return err
	}
	if !p.MACSpoofChk {
		return nil
	}
	err := op.Rules().Check(func(x *nft.Tx) error {
		x.GuardMAC(op.Attachment, op.Veth.Name, op.Link.MAC)
		return nil
	})
	if err == nil || !errors.As(err, new(*nft.MissingError)) {
		return err
	}
	have, err := op.Rules().Owned(op.Attachment, nft.KindMACGuard)
	if err != nil {
		return err
	}
	var allowed []string
	for _, e := range have {
		if mac := e.MAC(); mac != nil {
			allowed = append(allowed, mac.String())
		}
	}
	if len(allowed) > 0 && !slices.Contains(allowed, op.Link.MAC.String()) {
		return attach.Mismatch("macspoofchk: %s sends from %s, and the MAC guard lets %s pass alone", op.IfName, op.Link.MAC, allowed[0])
	}
	if len(have) > 0 {
		return nil
	}
	missing := &nft.MissingError{What: []string{"MAC guard of " + op.Veth.Name + " in table bridge cnibox"}}
	return netfilter.OrReference(attach.Mismatch("%w", missing), op.Rules(), op.Attachment, nft.KindMACGuard)
}

// Probe reports whether the host supports the configuration: it creates a bridge that filters VLANs
// in a new namespace. Without VLANs and rules it tries nothing: ADD reports a kernel without
// bridges.
func (p *plugin) Probe(op *attach.Op) error {
	if err := p.probeGateway(op); err != nil {
		return err
	}
	if p.filtersVLANs() {
		err := rtnl.InNewNS(func(k *rtnl.Conn) error {
			return k.AddLink(rtnl.LinkSpec{Name: p.Bridge, Kind: rtnl.Bridge{VLANFiltering: true}})
		})
		if err != nil {
			return p.unsupported(err)
		}
	}
	if !p.IPMasq && !p.MACSpoofChk {
		return nil
	}
	return op.Rules().Probe()
}

// probeGateway reports an address of the bridge that conflicts with the network's gateway while its
// subnet is in use, so that every ADD fails. This happens if flanneld has given the node another
// subnet.
func (p *plugin) probeGateway(op *attach.Op) error {
	if !p.IsGateway || p.ForceAddress || op.Net.IPAM.Type == "" {
		return nil
	}
	ipam, err := op.Validate(op.Net.IPAM.Type)
	if err != nil || len(ipam.Ranges) == 0 {
		return nil // the IPAM plugin's own STATUS reports it
	}
	var want []netip.Prefix
	for _, one := range ipam.Ranges {
		gw := one.Gateway
		if !gw.IsValid() {
			gw = one.Subnet.Addr().Next()
		}
		want = append(want, netip.PrefixFrom(gw, one.Subnet.Bits()))
	}
	link, err := op.Host.Link(p.Resources().Link)
	if errors.Is(err, os.ErrNotExist) {
		return nil // ADD creates the bridge
	}
	if err != nil {
		return err
	}
	if op.Bridge, err = op.Host.Link(p.Bridge); err != nil {
		return err
	}
	have, err := op.Host.Addrs(link.Index)
	if err != nil {
		return err
	}
	for _, h := range have {
		w, conflict := conflicting(h.Prefix, want)
		if !conflict {
			continue
		}
		user, err := userOf(op, link, h.Prefix)
		if err != nil {
			return err
		}
		if user != "" {
			return spec.Errorf(spec.CodeNotReady, "%q still has the address %s, and the gateway of the network is %s now", link.Name, h.Prefix, w).
				WithDetails("%s", advice(link.Name, h.Prefix, user))
		}
	}
	return nil
}

// addressesOf is the key of the addresses of a link, by index.
type addressesOf uint32
