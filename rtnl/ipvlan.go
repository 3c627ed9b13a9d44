package rtnl

import (
	"fmt"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"cnibox/internal/nlconn"
)

// An IpvlanMode says at which layer packets go between an ipvlan and its parent:
// as frames (L2), or as routed by the parent's namespace, without broadcasts (L3),
// and then through its packet filter too (L3S). It is one for all ipvlans of a
// parent; a new one changes it for the others.
type IpvlanMode uint16

// The modes: include/uapi/linux/if_link.h, enum ipvlan_mode.
const (
	IpvlanL2 IpvlanMode = iota
	IpvlanL3
	IpvlanL3S
)

// ipvlanModes are the names in ip(8), by number.
var ipvlanModes = [...]string{"l2", "l3", "l3s"}

// ParseIpvlanMode reads a mode by its name in ip(8); "" is l2.
func ParseIpvlanMode(s string) (IpvlanMode, error) {
	i, err := byName("ipvlan mode", s, ipvlanModes[:])
	return IpvlanMode(i), err
}

// String returns the mode's name in ip(8), for one without a name its number.
func (m IpvlanMode) String() string {
	if int(m) < len(ipvlanModes) {
		return ipvlanModes[m]
	}
	return fmt.Sprintf("mode %d", uint16(m))
}

// An IpvlanFlag says whether the ipvlans of a parent reach each other: directly
// (bridge), not at all (private), or by way of a switch outside (vepa). Like the
// mode it is one for all of them.
type IpvlanFlag uint16

// The flags: include/uapi/linux/if_link.h, IPVLAN_F_*, which names no bridge.
const (
	IpvlanBridge  IpvlanFlag = 0
	IpvlanPrivate IpvlanFlag = 1
	IpvlanVEPA    IpvlanFlag = 2
)

// ipvlanFlags are the names in ip(8), by number.
var ipvlanFlags = [...]string{"bridge", "private", "vepa"}

// ParseIpvlanFlag reads a flag by its name in ip(8); "" is bridge.
func ParseIpvlanFlag(s string) (IpvlanFlag, error) {
	i, err := byName("ipvlan flag", s, ipvlanFlags[:])
	return IpvlanFlag(i), err
}

// String returns the flag's name in ip(8), for one without a name its number.
func (f IpvlanFlag) String() string {
	if int(f) < len(ipvlanFlags) {
		return ipvlanFlags[f]
	}
	return fmt.Sprintf("flag %d", uint16(f))
}

// An Ipvlan is a sub-interface of [LinkSpec.Parent] with its MAC address: packets are
// for it by its IP addresses. It does not reach the parent's own addresses.
type Ipvlan struct {
	Mode IpvlanMode
	Flag IpvlanFlag
}

func (Ipvlan) kind() string { return "ipvlan" }

// encode writes IFLA_IPVLAN_*, include/uapi/linux/if_link.h. Both go always: the mode
// that the kernel chooses is l3, and the flag whatever the parent has.
func (v Ipvlan) encode(ae *netlink.AttributeEncoder) error {
	ae.Uint16(unix.IFLA_IPVLAN_MODE, uint16(v.Mode))
	ae.Uint16(unix.IFLA_IPVLAN_FLAGS, uint16(v.Flag))
	return nil
}

// decodeIpvlan reads what encode writes; what the kernel does not report is zero.
func decodeIpvlan(data []byte) Ipvlan {
	return Ipvlan{
		Mode: IpvlanMode(number(nlconn.Attribute(data, unix.IFLA_IPVLAN_MODE))),
		Flag: IpvlanFlag(number(nlconn.Attribute(data, unix.IFLA_IPVLAN_FLAGS))),
	}
}

// byName returns the index of s in names; "" is the first.
func byName(what, s string, names []string) (int, error) {
	for i, name := range names {
		if s == name || s == "" {
			return i, nil
		}
	}
	return 0, fmt.Errorf("unknown %s: %q is not one of %s", what, s, strings.Join(names, ", "))
}
