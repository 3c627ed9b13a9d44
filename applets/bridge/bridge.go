// Package bridge is the CNI plugin bridge: veth pair into a bridge on the host.
package bridge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"cnibox/applets/applet"
	"cnibox/applets/attach"
	"cnibox/applets/netfilter"
	"cnibox/nft"
	"cnibox/rtnl"
	"cnibox/spec"
)

// Applet is the plugin.
var Applet = applet.Applet{
	Name:    "bridge",
	Conf:    conf{},
	Summary: "veth pair into a bridge on the host",
	Help: `
key                        type    default  meaning
bridge                     string  cni0     bridge on the host; created if missing
isGateway                  bool    false    puts the gateway addresses on the bridge and forwards;
                                            drops router advertisements of the container
isDefaultGateway           bool    false    isGateway, and the container's default routes lead there
forceAddress               bool    false    replaces addresses of the bridge that conflict
ipMasq                     bool    false    masquerades what leaves the network
ipMasqBackend              string  -        iptables or nftables; both mean nftables
mtu                        int     0        bytes, 68 to 65535, of a new bridge too; 0: the kernel's
hairpinMode                bool    false    lets a container reach itself through the bridge
promiscMode                bool    false    bridge in promiscuous mode; not with hairpinMode
vlan                       int     0        untagged VLAN of the port, 1 to 4094; 0: none
vlanTrunk                  list    -        tagged VLANs: {minID, maxID}, {id} or both, 1 to 4094
preserveDefaultVlan        bool    false    keeps the bridge's default VLAN on the port
macspoofchk                bool    false    drops frames from another source MAC address
enabledad                  bool    false    IPv6 duplicate address detection in the container
disableContainerInterface  bool    false    leaves the container-side veth down; without ipam only
portIsolation              bool    false    no frames to and from other isolated ports; what the
                                            gateway routes between them, firewall's ingressPolicy
                                            isolated drops
ipam                       object  -        IPAM plugin, named by its "type"; none: layer 2 only
dns                        object  -        nameservers, domain, search, options; replaces ipam's
mac                        string  random   address of the container-side veth

runtimeConfig.dns (capability dns) replaces dns.
Of runtimeConfig.mac (capability mac), args.cni.mac and CNI_ARGS MAC the first replaces mac.`,
	Verbs: func() spec.Verbs {
		return attach.Verbs(attach.Interface[*port]{
			Kind: "veth", Validate: (*port).validate, Resources: (*port).resources,
			Shared: func(c *port) bool { return c.EnableDAD }, Down: func(c *port) bool { return c.DisableContainerInterface },
			Create: createPort, Resolve: resolveGateways, Setup: setup, Ready: ready,
			Verify: verify, Describe: describe, Probe: probe,
			Remove:  func(_ context.Context, op *attach.Op, _ *port) error { return op.RemoveVeth() },
			Cleanup: cleanup, Collect: collect, Restore: restore, RemoveNetwork: removeBridge,
			Prepare: prepare,
		})
	},
}

// kinds is what a bridge port owns in the rule set.
// DEL and GC release these with any configuration.
var kinds = []nft.Kind{nft.KindMasquerade, nft.KindMACGuard, nft.KindAdverts}

// A port is the port of an attachment during a verb: the configuration, and the links once they
// exist.
type port struct {
	conf
	link, host *rtnl.Link       // the bridge, and the port; nil before createPort
	made       bool             // by this ADD, with an address that stays
	mac        net.HardwareAddr // of a bridge that is made; nil: a random one
}

// conf are the keys; Help describes each. The zero value of each key is its default
// but for Bridge, which validate fills in.
type conf struct {
	netfilter.MasqConf
	Bridge                    string      `json:"bridge"`
	IsGateway                 bool        `json:"isGateway"`
	IsDefaultGateway          bool        `json:"isDefaultGateway"`
	ForceAddress              bool        `json:"forceAddress"`
	MTU                       int         `json:"mtu"` // bytes; 0: the kernel's choice
	HairpinMode               bool        `json:"hairpinMode"`
	PromiscMode               bool        `json:"promiscMode"`
	VLAN                      int         `json:"vlan"` // 0: none
	VLANTrunk                 []vlanTrunk `json:"vlanTrunk"`
	PreserveDefaultVLAN       bool        `json:"preserveDefaultVlan"`
	MACSpoofChk               bool        `json:"macspoofchk"`
	EnableDAD                 bool        `json:"enabledad"`
	DisableContainerInterface bool        `json:"disableContainerInterface"`
	PortIsolation             bool        `json:"portIsolation"`
	IPAM                      struct {
		Type string `json:"type"`
	} `json:"ipam"`
}

// validate checks the keys and fills in defaults. Errors begin with the phrases of the reference.
func (c *conf) validate() error {
	if c.Bridge == "" {
		c.Bridge = "cni0"
	}
	c.IsGateway = c.IsGateway || c.IsDefaultGateway
	if err := spec.CheckIfName(c.Bridge); err != nil {
		return spec.KeyErrorf("bridge", `"bridge" %q: %s`, c.Bridge, err.Error()) // not wrapped: its code is that of CNI_IFNAME
	}
	switch {
	case c.HairpinMode && c.PromiscMode:
		return spec.KeyErrorf("promiscMode", `cannot set hairpin mode and promiscuous mode at the same time: drop "hairpinMode" or "promiscMode"`)
	case c.DisableContainerInterface && c.IPAM.Type != "":
		return spec.KeyErrorf("disableContainerInterface", `cannot use IPAM when DisableContainerInterface flag is set: drop "ipam" or "disableContainerInterface"`)
	case c.MTU != 0 && (c.MTU < 68 || c.MTU > 65535):
		return spec.KeyErrorf("mtu", `"mtu" %d is not within 68 to 65535`, c.MTU)
	}
	return errors.Join(c.CheckBackend(), c.validateVLANs())
}

// resources names the link that the gateway addresses are put on.
func (c *port) resources() spec.Resources {
	link := c.Bridge
	if c.VLAN != 0 && c.IsGateway {
		link = c.vlanGateway()
	}
	return spec.Resources{Link: link, Routed: c.IsGateway}
}

// createPort creates the bridge, if it is missing, and a veth pair whose host side is a port of it.
//
// The port has its flags, VLANs and MAC guard before the container-side veth is set up, so no frame
// passes without them. The order of the result's interfaces is the reference's: bridge, host-side
// veth, container-side veth.
func createPort(ctx context.Context, op *attach.Op, c *port) (err error) {
	c.WarnBackend(op)
	if err := ensureBridge(op, c); err != nil {
		return err
	}
	if c.host, err = op.CreateVeth(c.MTU, c.link.Index); err != nil {
		return err
	}
	if err := afterJoin(op, c); err != nil {
		return err
	}
	if err := setupPort(op, c); err != nil {
		return err
	}
	if c.MACSpoofChk {
		if err := guardMAC(ctx, op, c.host.Name); err != nil {
			return err
		}
	}
	op.AddInterface(attach.HostInterface(c.link))
	op.AddInterface(attach.HostInterface(c.host))
	op.Container = op.AddInterface(op.ContainerInterface())
	return nil
}

// afterJoin reads a bridge that this ADD has not created again: the kernel may have changed its MTU
// for the new port and, if its MAC address was never set, that address too. A gateway gets its
// former address back, set explicitly. The address of a bridge that has lost its last port is zero.
func afterJoin(op *attach.Op, c *port) (err error) {
	if c.made {
		return nil
	}
	own := c.link.MAC
	if c.link, err = op.Host.LinkAt(c.link.Index); err != nil || !c.IsGateway || bytes.Equal(c.link.MAC, own) {
		return err
	}
	if bytes.Equal(own, make(net.HardwareAddr, len(own))) {
		own = attach.RandomMAC()
	}
	c.link.MAC = own
	return op.Host.Do(rtnl.ChangeLink(c.link.Index, rtnl.LinkChange{MAC: own}))
}

// guardMAC drops frames of the port with another source address, from before the container-side
// veth is up, by a rule in the bridge family.
func guardMAC(ctx context.Context, op *attach.Op, port string) error {
	table := nft.Open(op.Call.HostNS())
	op.Undo("MAC guard", func(ctx context.Context) error { return netfilter.Undo(ctx, op, table, kinds) })
	return table.Update(ctx, func(x *nft.Tx) error {
		x.GuardMAC(op.Attachment, port, op.Link.MAC)
		return nil
	})
}

// ensureBridge finds the bridge or creates it with a MAC address: without one it has the lowest of
// its ports', which changes when ports do.
func ensureBridge(op *attach.Op, c *port) error {
	br, err := op.Host.Link(c.Bridge)
	if errors.Is(err, os.ErrNotExist) {
		mac := c.mac
		if mac == nil {
			mac = attach.RandomMAC()
		}
		br, err = op.Host.CreateLink(rtnl.LinkSpec{
			Name: c.Bridge, Kind: rtnl.Bridge{VLANFiltering: c.filtersVLANs()}, MTU: c.MTU, MAC: mac, Up: true,
		})
		if err == nil {
			c.made = true
			op.Did("bridge %s made", c.Bridge)
			op.Undo("bridge "+c.Bridge, func(context.Context) error { return dropUnusedBridge(op, br.Index) })
		}
		if errors.Is(err, os.ErrExist) { // created by another ADD meanwhile
			br, err = op.Host.Link(c.Bridge)
		}
	}
	if err != nil {
		return fmt.Errorf("could not add bridge %q: %w", c.Bridge, c.unsupported(err))
	}
	if br.Kind != "bridge" {
		return spec.Errorf(spec.CodeConfig, "%q already exists but is not a bridge: it is of kind %q", c.Bridge, br.Kind).WithDetails(`"bridge" must be the name of a bridge, or one that is not in use`).AtKey("bridge")
	}
	c.link = br
	if err := reconcileBridge(op, c); err != nil {
		return err
	}
	if err := op.IgnoreRouters(br.Name); err != nil || !c.made {
		return err
	}
	return attach.SkipDAD(op, br.Name) // nothing is forwarded while its link-local address is tentative
}

// reconcileBridge changes an existing bridge as the configuration needs; settings that others may
// have made on purpose, as its MTU, stay. Without vlan_filtering "vlan" would have no effect.
func reconcileBridge(op *attach.Op, c *port) error {
	br := c.link
	var ch, back rtnl.LinkChange
	if !br.Up {
		ch.Up, back.Up = new(true), new(false)
	}
	if c.PromiscMode && !br.Promisc {
		ch.Promisc, back.Promisc = new(true), new(false)
	}
	if c.filtersVLANs() && !br.VLANFiltering {
		ch.VLANFiltering, back.VLANFiltering = new(true), new(false)
	}
	if ch.Up == nil && ch.Promisc == nil && ch.VLANFiltering == nil {
		return nil
	}
	err := op.Host.Do(rtnl.ChangeLink(br.Index, ch))
	if errors.Is(err, unix.EOPNOTSUPP) { // and nothing was changed
		return fmt.Errorf("bridge %q: %w", c.Bridge, c.unsupported(err))
	}
	op.Undo("settings of "+br.Name, func(context.Context) error {
		return whileUnused(op, br.Index, nil, func() error { return op.Host.Do(rtnl.ChangeLink(br.Index, back)) })
	})
	if err == nil {
		op.Did("bridge %s set %s", br.Name, changed(ch))
	}
	return err
}

// changed names what a change sets, as ip(8) does.
func changed(ch rtnl.LinkChange) string {
	var words []string
	for _, w := range []struct {
		word string
		set  *bool
	}{{"up", ch.Up}, {"promisc on", ch.Promisc}, {"vlan_filtering 1", ch.VLANFiltering}} {
		if w.set != nil {
			words = append(words, w.word)
		}
	}
	return strings.Join(words, " ")
}

// unsupported explains EOPNOTSUPP for a bridge.
// The code is 50.
func (c *conf) unsupported(err error) error {
	lacks := "CONFIG_BRIDGE"
	switch {
	case !errors.Is(err, unix.EOPNOTSUPP):
		return err
	case c.filtersVLANs():
		lacks = `CONFIG_BRIDGE_VLAN_FILTERING: drop "vlan" and "vlanTrunk", or use one that has it`
	}
	return spec.Errorf(spec.CodeNotReady, "this kernel lacks %s: %w", lacks, err)
}

// setupPort sets the port's flags and VLANs. Flags of a new port are off, so only those that are
// configured are sent.
func setupPort(op *attach.Op, c *port) error {
	ops := portVLANs(c)
	if c.HairpinMode || c.PortIsolation {
		ops = append(ops, rtnl.ChangeLink(c.host.Index, rtnl.LinkChange{Hairpin: &c.HairpinMode, Isolated: &c.PortIsolation}))
	}
	if ops == nil {
		return nil
	}
	return op.Host.Do(ops...)
}

// resolveGateways sets the gateway of each address and, if the bridge is the default gateway, the
// default route of each family. A default route from the IPAM plugin stays: the kernel would refuse
// a second one. It checks the gateways before anything of the host but the port is changed.
func resolveGateways(_ context.Context, op *attach.Op, c *port) error {
	for i := range op.Result.IPs {
		ip := &op.Result.IPs[i]
		if c.IsGateway && !ip.Gateway.IsValid() {
			ip.Gateway = ip.Address.Masked().Addr().Next()
		}
		dst := netip.PrefixFrom(unspecified(ip.Address.Addr()), 0)
		if c.IsDefaultGateway && !hasDestination(op.Result.Routes, dst) {
			op.Result.Routes = append(op.Result.Routes, spec.Route{Dst: dst, GW: ip.Gateway})
		}
	}
	if !c.IsGateway {
		return nil
	}
	return op.CheckGateways()
}

// unspecified is the address of a default route of the family of a.
func unspecified(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// hasDestination looks in the main table alone.
func hasDestination(routes []spec.Route, dst netip.Prefix) bool {
	for _, r := range routes {
		if r.Dst.Masked() == dst && (r.Table == nil || *r.Table == 0 || *r.Table == unix.RT_TABLE_MAIN) {
			return true
		}
	}
	return false
}
