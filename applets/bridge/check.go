package bridge

import (
	"context"
	"errors"
	"net/netip"
	"os"

	"cnibox/applets/attach"
	"cnibox/applets/netfilter"
	"cnibox/internal/netns"
	"cnibox/nft"
	"cnibox/rtnl"
	"cnibox/spec"
)

// verify checks the host's side of a port: the bridge, the host-side veth with
// its flags and VLANs, the gateway addresses, and what is in the rule set.
func verify(ctx context.Context, op *attach.Op, c *port) error {
	br, err := op.Host.Link(c.Bridge)
	if err != nil {
		return attach.Mismatch("bridge: %w", err)
	}
	if err := checkBridge(c, br); err != nil {
		return err
	}
	host, err := op.HostVeth()
	if err != nil {
		return attach.Lost("host interface: %w", err)
	}
	if err := checkPort(op, c, br, host); err != nil {
		return err
	}
	if err := checkGateways(op, c, br); err != nil {
		return err
	}
	if err := checkRules(op, c, host.Name); err != nil || !c.IsGateway || len(op.Own()) == 0 {
		return err
	}
	return attach.CheckForwarding(op) // last, since it is the host's
}

// checkBridge compares the bridge, but not its MAC address, which may follow its ports. It may be in
// promiscuous mode for another network.
func checkBridge(c *port, br *rtnl.Link) error {
	if br.Kind != "bridge" {
		return attach.Mismatch("%s is of kind %q, not a bridge", c.Bridge, br.Kind)
	}
	if !br.Up {
		return attach.Mismatch("bridge %s is down", c.Bridge)
	}
	if c.PromiscMode && !br.Promisc {
		return attach.Mismatch("bridge %s is not in promiscuous mode", c.Bridge)
	}
	return nil
}

// checkPort compares the host-side veth and its bridge. Both veths must be each other's peer, since
// indexes repeat in other namespaces.
func checkPort(op *attach.Op, c *port, br, host *rtnl.Link) error {
	switch {
	case host.Parent != op.Link.Index || op.Link.Parent != host.Index:
		return attach.Lost("%s is not the peer of %s in %s", host.Name, op.IfName, op.Call.NetNS)
	case host.Master != br.Index:
		return attach.Mismatch("%s is not a port of bridge %s", host.Name, c.Bridge)
	case !host.Up:
		return attach.Mismatch("%s is down", host.Name)
	case host.Hairpin != c.HairpinMode:
		return attach.Mismatch("%s: hairpin mode is %t, not %t", host.Name, host.Hairpin, c.HairpinMode)
	case c.PortIsolation && !host.Isolated: // firewall sets it too
		return attach.Mismatch("%s: port isolation is off", host.Name)
	}
	for _, i := range op.Prev.Interfaces {
		if i.Name == host.Name && i.Sandbox == "" {
			if err := attach.CheckMAC(host, i.MAC); err != nil {
				return err
			}
		}
	}
	if !c.filtersVLANs() {
		return nil
	}
	if !br.VLANFiltering { // the port's VLANs stay, without effect
		return attach.Mismatch("bridge %s does not filter VLANs", c.Bridge)
	}
	return checkVLANs(op, c, host)
}

// checkVLANs looks for each configured VLAN on the port, which may have more.
func checkVLANs(op *attach.Op, c *port, host *rtnl.Link) error {
	have, err := op.Host.PortVLANs(host.Index)
	if err != nil {
		return err
	}
	var tagged, pvid [vlanMax + 1]bool
	for _, r := range have {
		for id := r.From; id <= r.To && id <= vlanMax; id++ {
			tagged[id], pvid[id] = true, r.PVID
		}
	}
	for _, r := range c.wantedVLANs() {
		for id := r.From; id <= r.To; id++ {
			if !tagged[id] || r.PVID && !pvid[id] {
				return attach.Mismatch("%s: VLAN %d is missing on the port", host.Name, id)
			}
		}
	}
	return nil
}

// checkGateways looks for the gateway of each address on the bridge or on the interface of its
// VLAN.
func checkGateways(op *attach.Op, c *port, br *rtnl.Link) error {
	own := op.Own()
	if !c.IsGateway || len(own) == 0 {
		return nil
	}
	gw := br
	if c.VLAN != 0 {
		var err error
		if gw, err = op.Host.Link(c.vlanGateway()); err != nil {
			return attach.Mismatch("VLAN gateway: %w", err)
		}
	}
	have, err := op.Host.Addrs(gw.Index)
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

// hasGateway looks for the address with any prefix length.
func hasGateway(have []rtnl.Addr, ip spec.IP) bool {
	for _, a := range have {
		if a.Prefix.Addr() == ip.Gateway {
			return true
		}
	}
	return false
}

// checkRules looks for the elements that ADD added to the rule set. The guarded address is not
// compared: a later plugin may have changed that of the link.
func checkRules(op *attach.Op, c *port, port string) error {
	if err := c.CheckMasquerade(op); err != nil {
		return err
	}
	if !c.MACSpoofChk {
		return nil
	}
	have, err := nft.Open(op.Call.HostNS()).Owned(op.Attachment, nft.KindMACGuard)
	if err != nil || len(have) > 0 {
		return err
	}
	missing := &nft.MissingError{What: []string{"MAC guard of " + port + " in table bridge cnibox"}}
	return netfilter.OrReference(attach.Mismatch("%w", missing), op.Attachment, nft.KindMACGuard)
}

// probe reports whether the host can do what the configuration asks for.
// It creates a bridge that filters VLANs in a new namespace. Without VLANs and rules nothing is
// tried: a kernel without bridges is reported by ADD.
func probe(ctx context.Context, r *spec.Request, c *port) error {
	if err := probeGateway(ctx, r, c); err != nil {
		return err
	}
	if c.filtersVLANs() {
		err := rtnl.InNewNS(func(k *rtnl.Conn) error {
			return k.AddLink(rtnl.LinkSpec{Name: c.Bridge, Kind: rtnl.Bridge{VLANFiltering: true}})
		})
		if err != nil {
			return c.unsupported(err)
		}
	}
	if !c.IPMasq && !c.MACSpoofChk {
		return nil
	}
	return nft.Open(netns.Host()).Probe()
}

// probeGateway reports an address of the bridge with which the gateway of the network conflicts while
// its subnet is in use, so that every ADD fails: flanneld, as one, may have given the node another subnet.
func probeGateway(ctx context.Context, r *spec.Request, c *port) error {
	if !c.IsGateway || c.ForceAddress || r.Net.IPAM.Type == "" {
		return nil
	}
	ipam, err := r.Validate(r.Net.IPAM.Type)
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
	host, err := rtnl.Dial(netns.Host())
	if err != nil {
		return err
	}
	defer host.Close()
	link, err := host.Link(c.resources().Link)
	if errors.Is(err, os.ErrNotExist) {
		return nil // ADD makes it
	}
	if err != nil {
		return err
	}
	bridge, err := host.Link(c.Bridge)
	if err != nil {
		return err
	}
	have, err := host.Addrs(link.Index)
	if err != nil {
		return err
	}
	for _, h := range have {
		w, conflict := conflicting(h.Prefix, want)
		if !conflict {
			continue
		}
		user, err := userOf(ctx, host, r, bridge, link, h.Prefix)
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
