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
	Conf:    bridgeConf{},
	Summary: "veth pair into a bridge on the host",
	Help: `
key                        type    default  meaning
bridge                     string  cni0     bridge on the host; made if it is missing
isGateway                  bool    false    puts the gateway addresses on the bridge and forwards;
                                            drops router advertisements of the container
isDefaultGateway           bool    false    isGateway, and the container's default routes lead there
forceAddress               bool    false    replaces addresses of the bridge that conflict
ipMasq                     bool    false    masquerades what leaves the network
ipMasqBackend              string  -        iptables or nftables; both mean nftables, without a tool
mtu                        int     0        bytes, 68 to 65535, of a new bridge too; 0: the kernel's
hairpinMode                bool    false    lets a container reach itself through the bridge
promiscMode                bool    false    bridge in promiscuous mode; not with hairpinMode
vlan                       int     0        untagged VLAN of the port, 1 to 4094; 0: none
vlanTrunk                  list    -        tagged VLANs: {minID, maxID}, {id} or both, 1 to 4094
preserveDefaultVlan        bool    false    keeps the bridge's default VLAN on the port
macspoofchk                bool    false    drops frames from another source MAC address
enabledad                  bool    false    IPv6 duplicate address detection in the container
disableContainerInterface  bool    false    leaves the container end down; without ipam only
portIsolation              bool    false    no frames to and from other isolated ports; what the
                                            gateway routes between them, firewall's ingressPolicy
                                            isolated drops
ipam                       object  -        address plugin, named by its "type"; none: layer 2 only
dns                        object  -        nameservers, domain, search, options; instead of ipam's
mac                        string  random   address of the container end

Before dns goes runtimeConfig.dns (capability dns).
Before mac go runtimeConfig.mac (capability mac), args.cni.mac and CNI_ARGS MAC, in this order.`,
	Verbs: attach.Verbs(attach.Interface[*bridge]{
		Kind: "veth", Validate: (*bridge).validate,
		Create: createBridgePort, Resolve: resolveGateways, Configure: configureBridge, Setup: setupBridge, Ready: readyBridge,
		Verify: verifyBridge, Describe: describeBridge, Probe: probeBridge,
		Remove:  func(_ context.Context, op *attach.Op, _ *bridge) error { return op.RemoveVeth() },
		Cleanup: cleanupBridge, Collect: collectBridge, Restore: restoreBridge,
		Prepare: func(_ context.Context, op *attach.Op, c *bridge) error { return ensureBridge(op, c) },
	}),
}

// bridgeKinds is what a bridge port owns in the rule set.
// DEL and GC release these whatever the configuration says by now.
var bridgeKinds = []nft.Kind{nft.KindMasquerade, nft.KindMACGuard, nft.KindAdverts}

// A bridge is one port of a bridge at work: the configuration, and the links
// once they are there.
// It lives as long as the verb.
type bridge struct {
	bridgeConf
	link, host *rtnl.Link       // the bridge, and the port; nil before createBridgePort
	made       bool             // by this ADD, with an address that stays
	mac        net.HardwareAddr // of a bridge that is made; nil: a random one
}

// bridgeConf are the keys; Help tells each. The zero value of each key is its default
// but for Bridge, which validate fills in.
type bridgeConf struct {
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

// validate checks the keys against each other and fills in what follows from others.
// Phrases of the reference's errors stand in front, for those who search for them.
func (c *bridgeConf) validate() error {
	if c.Bridge == "" {
		c.Bridge = "cni0"
	}
	c.IsGateway = c.IsGateway || c.IsDefaultGateway
	if err := spec.CheckIfName(c.Bridge); err != nil {
		return fmt.Errorf(`"bridge" %q: %s`, c.Bridge, err.Error()) // not wrapped: its code is that of CNI_IFNAME
	}
	switch {
	case c.HairpinMode && c.PromiscMode:
		return errors.New(`cannot set hairpin mode and promiscuous mode at the same time: drop "hairpinMode" or "promiscMode"`)
	case c.DisableContainerInterface && c.IPAM.Type != "":
		return errors.New(`cannot use IPAM when DisableContainerInterface flag is set: drop "ipam" or "disableContainerInterface"`)
	case c.MTU != 0 && (c.MTU < 68 || c.MTU > 65535):
		return fmt.Errorf(`"mtu" %d is not within 68 to 65535`, c.MTU)
	}
	return errors.Join(c.CheckBackend(), c.validateVLANs())
}

// createBridgePort makes sure of the bridge and puts a veth pair into it.
//
// The port is in the bridge, with its flags, VLANs and guard, while the container end
// is still down: no frame passes before all of it is in force. The order of the
// result's interfaces is the reference's: bridge, host end, container end.
func createBridgePort(ctx context.Context, op *attach.Op, c *bridge) (err error) {
	op.DAD = c.EnableDAD
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

// afterJoin reads a bridge that this ADD has not made again: with a new port the kernel may
// have given it another MTU and, where nothing has set its MAC address, that of the port. A
// gateway gets its own address back, for good.
// The address of a bridge without ports is zero once it has had one.
func afterJoin(op *attach.Op, c *bridge) (err error) {
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

// guardMAC is in force before the container end comes up.
// The rule is in the bridge family: frames of the port with another source address go.
func guardMAC(ctx context.Context, op *attach.Op, port string) error {
	table := nft.Open(rtnl.Host())
	op.Undo("MAC guard", func(ctx context.Context) error { return netfilter.Undo(ctx, op, table, bridgeKinds) })
	return table.Update(ctx, func(x *nft.Tx) error {
		x.GuardMAC(op.Attachment, port, op.Link.MAC)
		return nil
	})
}

// ensureBridge finds the bridge or makes it, with a MAC address of its own so
// that it does not change with its ports.
// A bridge without an address of its own takes the lowest of its ports', and neighbours
// lose it whenever a port comes or goes.
func ensureBridge(op *attach.Op, c *bridge) error {
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
			op.Undo("bridge "+c.Bridge, func(context.Context) error { return dropUnusedBridge(op, br.Index) })
		}
		if errors.Is(err, os.ErrExist) { // made by another ADD meanwhile
			br, err = op.Host.Link(c.Bridge)
		}
	}
	if err != nil {
		return fmt.Errorf("could not add bridge %q: %w", c.Bridge, c.unsupported(err))
	}
	if br.Kind != "bridge" {
		return spec.Errorf(spec.CodeConfig, "%q already exists but is not a bridge: it is of kind %q", c.Bridge, br.Kind)
	}
	c.link = br
	if err := reconcileBridge(op, c); err != nil {
		return err
	}
	if err := op.IgnoreRouters(br.Name); err != nil || !c.made {
		return err
	}
	return attach.SkipDAD(op, br.Name) // or nothing is forwarded while its link-local address is tentative
}

// reconcileBridge brings an existing bridge to what the configuration needs;
// what others may have set on purpose, as its MTU, is left alone.
// The reference leaves vlan_filtering as it is, and then "vlan" has no effect.
func reconcileBridge(op *attach.Op, c *bridge) error {
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
	return err
}

// unsupported says what the kernel's EOPNOTSUPP for a bridge means.
// The code is 50.
func (c *bridgeConf) unsupported(err error) error {
	lacks := "CONFIG_BRIDGE"
	switch {
	case !errors.Is(err, unix.EOPNOTSUPP):
		return err
	case c.filtersVLANs():
		lacks = `CONFIG_BRIDGE_VLAN_FILTERING: drop "vlan" and "vlanTrunk", or use one that has it`
	}
	return spec.Errorf(spec.CodeNotReady, "this kernel lacks %s: %w", lacks, err)
}

// setupPort sets the port's flags and VLANs.
// Flags of a new port are off, so only those that are to be on are sent.
func setupPort(op *attach.Op, c *bridge) error {
	ops := portVLANs(c)
	if c.HairpinMode || c.PortIsolation {
		ops = append(ops, rtnl.ChangeLink(c.host.Index, rtnl.LinkChange{Hairpin: &c.HairpinMode, Isolated: &c.PortIsolation}))
	}
	if ops == nil {
		return nil
	}
	return op.Host.Do(ops...)
}

// resolveGateways gives each address its gateway, and each family its default
// route if the bridge is to be the default gateway.
// A default route from the IPAM plugin stands, with a gateway or without: a second one
// of the same destination would be refused by the kernel. What the bridge is to have is
// looked at here, when nothing of the host's is changed but the port.
func resolveGateways(_ context.Context, op *attach.Op, c *bridge) error {
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

// configureBridge leaves the container's link down where the configuration wants it so. It
// has no addresses then, as validate sees to.
func configureBridge(ctx context.Context, op *attach.Op, c *bridge) error {
	if c.DisableContainerInterface {
		return nil
	}
	return op.Configure(ctx)
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
