package rtnl

import (
	"fmt"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/nlconn"
)

// An IpvlanMode is the layer at which packets pass between an ipvlan and its parent: as frames
// (L2), routed by the parent's namespace, without broadcasts (L3), or the same and through its
// packet filter (L3S). All ipvlans of a parent have the same mode; a new ipvlan changes it for the
// others.
type IpvlanMode uint16

// The modes: include/uapi/linux/if_link.h, enum ipvlan_mode.
const (
	IpvlanL2 IpvlanMode = iota
	IpvlanL3
	IpvlanL3S
)

// ipvlanModes has the names in ip(8), by number.
var ipvlanModes = [...]string{"l2", "l3", "l3s"}

// ParseIpvlanMode parses a mode's name in ip(8); "" is l2.
func ParseIpvlanMode(s string) (IpvlanMode, error) {
	i, err := byName("ipvlan mode", s, ipvlanModes[:])
	return IpvlanMode(i), err
}

// String returns the mode's name in ip(8), or its number if it has no name.
func (m IpvlanMode) String() string {
	if int(m) < len(ipvlanModes) {
		return ipvlanModes[m]
	}
	return fmt.Sprintf("mode %d", uint16(m))
}

// An IpvlanFlag says whether the ipvlans of a parent reach each other: directly (bridge), not at
// all (private), or through an external switch (vepa). All ipvlans of a parent have the same flag.
type IpvlanFlag uint16

// The flags: include/uapi/linux/if_link.h, IPVLAN_F_*, which has no name for bridge.
const (
	IpvlanBridge  IpvlanFlag = 0
	IpvlanPrivate IpvlanFlag = 1
	IpvlanVEPA    IpvlanFlag = 2
)

// ipvlanFlags has the names in ip(8), by number.
var ipvlanFlags = [...]string{"bridge", "private", "vepa"}

// ParseIpvlanFlag parses a flag's name in ip(8); "" is bridge.
func ParseIpvlanFlag(s string) (IpvlanFlag, error) {
	i, err := byName("ipvlan flag", s, ipvlanFlags[:])
	return IpvlanFlag(i), err
}

// String returns the flag's name in ip(8), or its number if it has no name.
func (f IpvlanFlag) String() string {
	if int(f) < len(ipvlanFlags) {
		return ipvlanFlags[f]
	}
	return fmt.Sprintf("flag %d", uint16(f))
}

// An Ipvlan is a sub-interface of [LinkSpec.Parent] with the parent's MAC address: the kernel
// delivers packets by IP address. It cannot reach the parent's own addresses.
type Ipvlan struct {
	Mode IpvlanMode
	Flag IpvlanFlag
}

func (Ipvlan) kind() string { return "ipvlan" }

// encode writes IFLA_IPVLAN_*, include/uapi/linux/if_link.h. It always writes both: otherwise the
// kernel chooses l3 as mode, and the parent's current flag.
func (v Ipvlan) encode(ae *netlink.AttributeEncoder) error {
	ae.Uint16(unix.IFLA_IPVLAN_MODE, uint16(v.Mode))
	ae.Uint16(unix.IFLA_IPVLAN_FLAGS, uint16(v.Flag))
	return nil
}

// decodeIpvlan is the reverse of encode; attributes that the kernel does not report are zero.
func decodeIpvlan(data []byte) Ipvlan {
	return Ipvlan{
		Mode: IpvlanMode(number(nlconn.Attribute(data, unix.IFLA_IPVLAN_MODE))),
		Flag: IpvlanFlag(number(nlconn.Attribute(data, unix.IFLA_IPVLAN_FLAGS))),
	}
}

// byName returns the index of s in names; "" is the first name.
func byName(what, s string, names []string) (int, error) {
	for i, name := range names {
		if s == name || s == "" {
			return i, nil
		}
	}
	return 0, fmt.Errorf("unknown %s: %q is not one of %s", what, s, strings.Join(names, ", "))
}
