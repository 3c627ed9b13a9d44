package attach

import (
	"errors"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// minMTU6 is IPV6_MIN_MTU, include/net/ipv6.h, in bytes.
const minMTU6 = 1280

// checkMTU6 refuses IPv6 addresses on a link whose MTU is too small; the kernel does not report
// this. The code is 7.
func (op *Op) checkMTU6() error {
	if op.Link != nil && op.hasIPv6() && op.Link.MTU < minMTU6 {
		return spec.Errorf(spec.CodeConfig, "MTU %d of %s is too small for IPv6, which needs %d: raise \"mtu\", or have no IPv6 address given", op.Link.MTU, op.IfName, minMTU6)
	}
	return nil
}

// setAddresses sets sysctls and addresses and brings the link up, in one batch where netlink
// allows it. With prefixRoutes each address comes with a route to its network. A link that DEL
// finds by its name gets the attachment as its alias, so that DEL does not delete the link of
// another network with that name.
func (op *Op) setAddresses(prefixRoutes bool) error {
	up := rtnl.LinkChange{Up: new(true)}
	if !op.plugin.Veth && !op.plugin.Moved {
		up.Alias = op.label()
	}
	if len(op.Result.IPs) == 0 {
		return op.explainInUse(op.Cont.Do(rtnl.ChangeLink(op.Link.Index, up)))
	}
	settings := op.sysctls()
	for i := range settings {
		settings[i].Differs = true
	}
	if err := op.NS.SetSysctls(settings...); err != nil {
		return err
	}
	// first: the kernel reads a family's settings for a link after the link's flags
	ops := []rtnl.Op{rtnl.ChangeLink(op.Link.Index, rtnl.LinkChange{ARPNotify: new(true)})}
	if op.Link.Announces() {
		ops = append(ops, rtnl.ChangeLink(op.Link.Index, up))
	}
	for _, ip := range op.Result.IPs {
		ops = append(ops, rtnl.NewAddr(op.Link.Index, op.address(ip, prefixRoutes)))
	}
	if !op.Link.Announces() { // a link that announces does so when it comes up with its addresses
		ops = append(ops, rtnl.ChangeLink(op.Link.Index, up))
	}
	if err := op.Cont.Do(ops...); err != nil {
		return op.explainInUse(err)
	}
	if op.resources.Shared && op.hasIPv6() {
		return op.waitDAD()
	}
	return nil
}

// address returns an address of the result in the form for the container's link.
func (op *Op) address(ip spec.IP, prefixRoute bool) rtnl.Addr {
	return rtnl.Addr{Prefix: ip.Address, NoDAD: !op.resources.Shared, NoPrefixRoute: !prefixRoute}
}

// explainInUse explains EADDRINUSE: another link of the same master has the MAC address of the
// macvlan, or the IP address of the ipvlan. The code is 100.
func (op *Op) explainInUse(err error) error {
	if !errors.Is(err, unix.EADDRINUSE) {
		return err
	}
	return spec.Errorf(spec.CodeBusy, "MAC address %s, or an IP address, is that of another link on the same master: DEL what has it, or ask for another: %w", op.Link.MAC, err)
}

// sysctls returns the settings of the container's link. IPv6 is enabled only for an IPv6 address.
// Optional settings may be missing, as in a kernel without IPv6.
func (op *Op) sysctls() []netns.Sysctl {
	conf := "net/ipv6/conf/" + op.IfName + "/"
	dad := netns.Sysctl{Key: conf + "accept_dad", Value: "0", Optional: true}
	if op.resources.Shared {
		dad.Value = "1"
	}
	if !op.hasIPv6() {
		return []netns.Sysctl{dad}
	}
	all := []netns.Sysctl{dad,
		{Key: "net/ipv6/conf/lo/disable_ipv6", Value: "0"},
		{Key: conf + "disable_ipv6", Value: "0"},
		{Key: conf + "keep_addr_on_down", Value: "1", Optional: true}}
	if !op.Link.Announces() { // announce does it for other links
		all = append(all, rtnl.NDNotify(op.IfName))
	}
	return all
}

func (op *Op) hasIPv6() bool {
	for _, ip := range op.Result.IPs {
		if ip.Address.Addr().Is6() {
			return true
		}
	}
	return false
}

// announce sends gratuitous ARP and neighbour advertisements, so that an address which another
// container used before is reachable at once. A failure is not an error: hosts update their
// neighbour entries after 15 s or more.
func (op *Op) announce() {
	if len(op.Result.IPs) == 0 || op.Link == nil || !op.Link.Announces() {
		return
	}
	var err error
	if op.hasIPv6() {
		err = op.NS.SetSysctls(rtnl.NDNotify(op.IfName))
	}
	if err == nil {
		err = op.Cont.Do(rtnl.Announce(op.Link))
	}
	if err != nil {
		op.Warn("announce %s: %v", op.IfName, err)
	}
}

// OwnAddresses returns the addresses of prevResult that belong to the container's link.
func (op *Op) OwnAddresses() []spec.IP { return op.Prev.Addresses(op.IfName, op.isNS) }

// checkAddrs looks for each of the addresses of prevResult on the link.
func (op *Op) checkAddrs() error {
	missing, err := op.missingAddrs()
	if err != nil || len(missing) == 0 {
		return err
	}
	return Mismatch("interface %s does not have address %s", op.IfName, missing[0].Address)
}

// missingAddrs returns the addresses of prevResult that the link lacks. The link may have others.
// An address that failed duplicate detection counts as missing. The error is [Lost] where the MTU
// is too small for IPv6.
func (op *Op) missingAddrs() (missing []spec.IP, err error) {
	have, err := op.Cont.Addrs(op.Link.Index)
	if err != nil {
		return nil, err
	}
	set := map[netip.Prefix]bool{}
	for _, a := range have {
		set[a.Prefix] = !a.DADFailed
	}
	for _, ip := range op.OwnAddresses() {
		if !set[ip.Address] && ip.Address.Addr().Is6() && op.Link.MTU < minMTU6 {
			return nil, Lost("interface %s does not have address %s: its MTU is %d, and IPv6 needs %d", op.IfName, ip.Address, op.Link.MTU, minMTU6)
		}
		if !set[ip.Address] {
			missing = append(missing, ip)
		}
	}
	return missing, nil
}

// restoreAddrs adds the addresses that the container's link lacks. It does not wait for duplicate
// detection: CHECK reports a duplicate.
func (op *Op) restoreAddrs(prefixRoutes bool) error {
	missing, err := op.missingAddrs()
	if err != nil || len(missing) == 0 {
		return err
	}
	if slices.ContainsFunc(missing, func(ip spec.IP) bool { return ip.Address.Addr().Is6() }) {
		if err := op.NS.SetSysctls(op.sysctls()...); err != nil {
			return err
		}
	}
	var ops []rtnl.Op
	for _, ip := range missing {
		ops = append(ops, rtnl.ReplaceAddr(op.Link.Index, op.address(ip, prefixRoutes)))
	}
	if err := op.Cont.Do(ops...); err != nil {
		return op.explainInUse(err)
	}
	for _, ip := range missing {
		op.Did("address %s added to %s", ip.Address, op.IfName)
	}
	op.announce()
	return nil
}
