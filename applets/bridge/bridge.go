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
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/attach"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// Applet is the plugin.
var Applet = applet.Applet{
	Name:    "bridge",
	Conf:    plugin{},
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
	Plugin: func() spec.Plugin { return flow.Spec() },
}

var flow = attach.Plugin{
	Facts: spec.Facts{Args: true, MAC: true},
	Kind:  "veth", Veth: true, Rules: []nft.Kind{nft.KindMasquerade, nft.KindMACGuard, nft.KindAdverts},
	New: func() attach.Driver { return new(plugin) },
}

// plugin has the keys; Help describes each. The zero value of each key is its default, except for
// Bridge, which Validate fills in.
type plugin struct {
	attach.Defaults
	attach.MasqConf
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

	newBridge bool // this verb created the bridge, with an address that stays
	set       bool // this verb has set flags and VLANs of the port
	guarded   bool // this verb has guarded the port
}

// Validate checks the keys and fills in defaults. Errors begin with the phrases of the reference.
func (p *plugin) Validate(*spec.Request) error {
	if p.Bridge == "" {
		p.Bridge = "cni0"
	}
	p.IsGateway = p.IsGateway || p.IsDefaultGateway
	if err := spec.CheckIfName(p.Bridge); err != nil {
		return spec.KeyErrorf("bridge", `"bridge" %q: %s`, p.Bridge, err.Error()) // not wrapped: its code is that of CNI_IFNAME
	}
	switch {
	case p.HairpinMode && p.PromiscMode:
		return spec.KeyErrorf("promiscMode", `cannot set hairpin mode and promiscuous mode at the same time: drop "hairpinMode" or "promiscMode"`)
	case p.DisableContainerInterface && p.IPAM.Type != "":
		return spec.KeyErrorf("disableContainerInterface", `cannot use IPAM when DisableContainerInterface flag is set: drop "ipam" or "disableContainerInterface"`)
	case p.MTU != 0 && (p.MTU < 68 || p.MTU > 65535):
		return spec.KeyErrorf("mtu", `"mtu" %d is not within 68 to 65535`, p.MTU)
	}
	return errors.Join(p.CheckBackend(), p.validateVLANs())
}

// Resources name the link that has the gateway addresses.
func (p *plugin) Resources() spec.Resources {
	link := p.Bridge
	if p.VLAN != 0 && p.IsGateway {
		link = p.vlanGateway()
	}
	return spec.Resources{Link: link, Routed: p.IsGateway, Isolated: p.PortIsolation, Shared: p.EnableDAD, Down: p.DisableContainerInterface}
}

// Link creates the bridge, if it is missing, and a veth pair whose host-side veth is a port of it,
// or becomes one in Host, see joinsLate.
//
// The port gets its flags, VLANs and MAC guard before the container-side veth is set up, so that no
// frame passes without them.
func (p *plugin) Link(op *attach.Op) error {
	p.WarnBackend(op)
	if err := p.ensureBridge(op); err != nil {
		return err
	}
	if p.joinsLate(op) {
		return op.CreateVeth(p.MTU, 0)
	}
	if err := op.CreateVeth(p.MTU, op.Bridge.Index); err != nil {
		return err
	}
	if err := p.afterJoin(op); err != nil {
		return err
	}
	if err := p.setPort(op, true); err != nil || !p.MACSpoofChk {
		return err
	}
	p.guarded = true
	return op.AddRules(op.Call.Session.AtOnce(), func(x *nft.Tx) { x.GuardMAC(op.Attachment, op.Veth.Name, op.Link.MAC) }, nil)
}

// joinsLate reports whether the host-side veth joins the bridge only when the container's link is up and has its
// addresses. A bridge copies a multicast frame to each port, and each copy is received within ADD: what a link sends
// when it comes up for its IPv6 link-local address, which nothing waits for in a network of IPv4, took a third of an
// ADD at 500 ports. With IPv6 addresses a bridge with an MLD querier has to hear it, or drops what asks for these
// for seconds. The port joins first too where the lease may be asked for over the link, where no frame may pass
// before a setting of the port, and without isGateway: then the bridge's MAC address may change, see afterJoin.
func (p *plugin) joinsLate(op *attach.Op) bool {
	if !p.IsGateway || p.PortIsolation || p.MACSpoofChk || p.filtersVLANs() {
		return false
	}
	known, err := op.Validate(op.Net.IPAM.Type)
	isIPv6 := func(r spec.Range) bool { return r.Subnet.Addr().Is6() }
	return err == nil && known.Ranges != nil && !slices.ContainsFunc(known.Ranges, isIPv6)
}

// afterJoin reads an existing bridge again after a port has joined it: the kernel may have changed
// its MTU, and its MAC address if that was never set. A gateway gets its former address back, set
// explicitly. A bridge that has lost its last port has the address zero.
func (p *plugin) afterJoin(op *attach.Op) (err error) {
	if p.newBridge {
		return nil
	}
	own := op.Bridge.MAC
	if op.Bridge, err = op.Host.LinkAt(op.Bridge.Index); err != nil {
		return err
	}
	for i := range op.Result.Interfaces {
		if of := &op.Result.Interfaces[i]; of.Name == p.Bridge && of.Sandbox == "" {
			of.MTU = op.Bridge.MTU
		}
	}
	if !p.IsGateway || bytes.Equal(op.Bridge.MAC, own) {
		return nil
	}
	if bytes.Equal(own, make(net.HardwareAddr, len(own))) {
		own = attach.RandomMAC()
	}
	op.Bridge.MAC = own
	return op.Host.Do(rtnl.ChangeLink(op.Bridge.Index, rtnl.LinkChange{MAC: own}))
}

// ensureBridge finds the bridge or creates it with a MAC address: without one it has the lowest of
// its ports' addresses, which changes with the ports. RESTORE creates it with its former MAC
// address and MTU, so that containers keep using the gateway address that they know.
func (p *plugin) ensureBridge(op *attach.Op) error {
	mac, mtu := op.Recorded(p.Bridge, true)
	br, err := op.Host.Link(p.Bridge)
	if errors.Is(err, os.ErrNotExist) {
		br, err = p.makeBridge(op, mac, mtu)
	}
	if err != nil {
		return fmt.Errorf("could not add bridge %q: %w", p.Bridge, p.unsupported(err))
	}
	if br.Kind != "bridge" {
		return spec.Errorf(spec.CodeConfig, "%q already exists but is not a bridge: it is of kind %q", p.Bridge, br.Kind).WithDetails(`"bridge" must be the name of a bridge, or one that is not in use`).AtKey("bridge")
	}
	op.Bridge = br
	if err := p.reconcileBridge(op); err != nil {
		return err
	}
	if err := p.ignoreRouters(op); err != nil {
		return err
	}
	if mac != nil && !p.newBridge {
		err = p.restoreEmpty(op, mac)
	}
	if err != nil || !p.newBridge {
		return err
	}
	return op.SkipDAD(br.Name) // the bridge forwards nothing while its link-local address is tentative
}

// ignoreRouters is [attach.Op.IgnoreRouters] of the bridge, unless that would take the host's own way out: a bridge
// with an uplink may have learned the default route.
func (p *plugin) ignoreRouters(op *attach.Op) error {
	if br := op.Bridge; br.AcceptRA != 0 && !p.newBridge {
		learned, err := attach.LearnedDefaults(op.Host)
		if err != nil {
			return err
		}
		if slices.Contains(learned, br.Index) {
			op.Warn("%s has the default route of a router advertisement, and goes on accepting those, also of containers (CVE-2020-10749): a static default route and accept_ra 0 would end that", br.Name)
			return nil
		}
	}
	return op.IgnoreRouters(op.Bridge)
}

// makeBridge creates the bridge. mac is nil for a random address, mtu 0 for the kernel's choice.
func (p *plugin) makeBridge(op *attach.Op, mac net.HardwareAddr, mtu int) (*rtnl.Link, error) {
	if mac == nil {
		mac = attach.RandomMAC()
	}
	if p.MTU != 0 {
		mtu = p.MTU
	}
	br, err := op.Host.CreateLink(rtnl.LinkSpec{
		Name: p.Bridge, Kind: rtnl.Bridge{VLANFiltering: p.filtersVLANs()}, MTU: mtu, MAC: mac, Up: true,
	})
	if errors.Is(err, os.ErrExist) { // another ADD has created it meanwhile
		return op.Host.Link(p.Bridge)
	}
	if err != nil {
		return nil, err
	}
	p.newBridge = true
	op.Did("bridge %s made", p.Bridge)
	op.Undo("bridge "+p.Bridge, func(context.Context) error { return dropUnusedBridge(op, br.Index) })
	return br, nil
}

// restoreEmpty configures a bridge without ports as a new one: another program created it, or a
// restore that was killed.
func (p *plugin) restoreEmpty(op *attach.Op, mac net.HardwareAddr) error {
	links, err := op.Host.Links()
	if err != nil || slices.ContainsFunc(links, func(l rtnl.Link) bool { return l.Master == op.Bridge.Index }) {
		return err
	}
	if !bytes.Equal(mac, op.Bridge.MAC) {
		if err := op.Host.Do(rtnl.ChangeLink(op.Bridge.Index, rtnl.LinkChange{MAC: mac})); err != nil {
			return err
		}
		op.Bridge.MAC = mac
	}
	return op.SkipDAD(p.Bridge)
}

// reconcileBridge changes an existing bridge as the configuration requires. Settings that others
// may have made on purpose, such as its MTU, stay. Without vlan_filtering "vlan" would have no
// effect.
func (p *plugin) reconcileBridge(op *attach.Op) error {
	br := op.Bridge
	var ch, undo rtnl.LinkChange
	if !br.Up {
		ch.Up, undo.Up = new(true), new(false)
	}
	if p.PromiscMode && !br.Promisc {
		ch.Promisc, undo.Promisc = new(true), new(false)
	}
	if p.filtersVLANs() && !br.VLANFiltering {
		ch.VLANFiltering, undo.VLANFiltering = new(true), new(false)
	}
	if ch.Up == nil && ch.Promisc == nil && ch.VLANFiltering == nil {
		return nil
	}
	err := op.Host.Do(rtnl.ChangeLink(br.Index, ch))
	if errors.Is(err, unix.EOPNOTSUPP) { // nothing was changed
		return fmt.Errorf("bridge %q: %w", p.Bridge, p.unsupported(err))
	}
	op.Undo("settings of "+br.Name, func(context.Context) error {
		return whileUnused(op, br.Index, nil, func() error { return op.Host.Do(rtnl.ChangeLink(br.Index, undo)) })
	})
	if err == nil {
		op.Did("bridge %s set %s", br.Name, changed(ch))
	}
	return err
}

// changed names the settings of a change, as ip(8) does.
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

// unsupported explains EOPNOTSUPP for a bridge. The code is 50.
func (p *plugin) unsupported(err error) error {
	lacks := "CONFIG_BRIDGE"
	switch {
	case !errors.Is(err, unix.EOPNOTSUPP):
		return err
	case p.filtersVLANs():
		lacks = `CONFIG_BRIDGE_VLAN_FILTERING: drop "vlan" and "vlanTrunk", or use one that has it`
	}
	return spec.Errorf(spec.CodeNotReady, "this kernel lacks %s: %w", lacks, err)
}

// setPort makes the host-side veth a port of the bridge, and sets the flags and VLANs that differ.
// A fresh port has just joined the bridge and has nothing set. Port isolation that is on stays on:
// the firewall plugin may have set it.
func (p *plugin) setPort(op *attach.Op, fresh bool) error {
	if p.set {
		return nil
	}
	p.set = true
	var ops []rtnl.Op
	var did []string
	veth := op.Veth
	joins := veth.Master != op.Bridge.Index
	if joins {
		ops = append(ops, rtnl.ChangeLink(veth.Index, rtnl.LinkChange{Master: &op.Bridge.Index, ARP: new(true)}))
		did = append(did, "put on "+p.Bridge)
	}
	fresh = fresh || joins
	if fresh && (p.HairpinMode || p.PortIsolation) || veth.Hairpin != p.HairpinMode || p.PortIsolation && !veth.Isolated {
		isolated := p.PortIsolation || veth.Isolated && !fresh
		ops = append(ops, rtnl.ChangeLink(veth.Index, rtnl.LinkChange{Hairpin: &p.HairpinMode, Isolated: &isolated}))
		did = append(did, "flags of the port set")
	}
	if p.filtersVLANs() && (fresh || p.checkVLANs(op) != nil) {
		ops = append(ops, p.portVLANs(veth.Index)...)
		did = append(did, "VLANs set")
	}
	if ops == nil {
		return nil
	}
	if err := op.Host.Do(ops...); err != nil {
		return err
	}
	op.Did("%s %s", veth.Name, strings.Join(did, " and "))
	if joins {
		return p.afterJoin(op)
	}
	return nil
}

// Gateways sets the gateway of each address and, if the bridge is the default gateway, the default
// route of each family. It keeps a default route of the IPAM plugin, since the kernel would refuse
// a second one. On the host only the port has been changed before.
func (p *plugin) Gateways(op *attach.Op) error {
	for i := range op.Result.IPs {
		ip := &op.Result.IPs[i]
		if p.IsGateway && !ip.Gateway.IsValid() {
			ip.Gateway = ip.Address.Masked().Addr().Next()
		}
		dst := netip.PrefixFrom(unspecified(ip.Address.Addr()), 0)
		if p.IsDefaultGateway && !hasDestination(op.Result.Routes, dst) {
			op.Result.Routes = append(op.Result.Routes, spec.Route{Dst: dst, GW: ip.Gateway})
		}
	}
	if !p.IsGateway {
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

// hasDestination looks only in the main table.
func hasDestination(routes []spec.Route, dst netip.Prefix) bool {
	for _, r := range routes {
		if r.Dst.Masked() == dst && (r.Table == nil || *r.Table == 0 || *r.Table == unix.RT_TABLE_MAIN) {
			return true
		}
	}
	return false
}
