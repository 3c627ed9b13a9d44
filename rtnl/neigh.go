package rtnl

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/jsimonetti/rtnetlink/v2"
	"golang.org/x/sys/unix"
)

// A Neighbour is an entry of the neighbour tables: ARP and NDP.
type Neighbour struct {
	Addr  netip.Addr
	MAC   net.HardwareAddr // nil: not known
	Link  uint32
	State uint16 // NUD_*, include/uapi/linux/neighbour.h
}

// Fixed returns the state in ip-neighbour(8) of an entry that does not expire and that the kernel
// does not verify: "permanent" or "noarp"; empty for any other entry.
func (n Neighbour) Fixed() string {
	switch {
	case n.State&unix.NUD_PERMANENT != 0:
		return "permanent"
	case n.State&unix.NUD_NOARP != 0:
		return "noarp"
	}
	return ""
}

// neighbourStates has the names in ip-neighbour(8) in the order of the state bits.
var neighbourStates = [...]string{"incomplete", "reachable", "stale", "delay", "probe", "failed", "noarp", "permanent"}

// StateText formats the state as ip-neighbour(8) does, in lower case.
func (n Neighbour) StateText() string {
	for bit, name := range neighbourStates {
		if n.State&(1<<bit) != 0 {
			return name
		}
	}
	return "none"
}

// Usable reports whether packets are sent to the MAC address of the entry (NUD_VALID).
func (n Neighbour) Usable() bool {
	return n.State&(unix.NUD_REACHABLE|unix.NUD_STALE|unix.NUD_DELAY|unix.NUD_PROBE|unix.NUD_NOARP|unix.NUD_PERMANENT) != 0
}

// Neighbour returns the entry of an address on a link; the zero value if there is none.
func (c *Conn) Neighbour(addr netip.Addr, link uint32) (Neighbour, error) {
	all, err := c.Neighbours()
	for _, n := range all {
		if n.Addr == addr && n.Link == link {
			return n, nil
		}
	}
	return Neighbour{}, err
}

// Neighbours returns the entries of both families.
func (c *Conn) Neighbours() (all []Neighbour, err error) {
	ms, err := c.neighbours(unix.AF_UNSPEC)
	for _, n := range ms {
		if addr, ok := netip.AddrFromSlice(n.Attributes.Address); ok {
			all = append(all, Neighbour{addr.Unmap(), n.Attributes.LLAddress, n.Index, n.State})
		}
	}
	return all, err
}

// FDB returns the MAC addresses in the forwarding databases of all bridges, with the port of each as Link.
func (c *Conn) FDB() (all []Neighbour, err error) {
	ms, err := c.neighbours(unix.AF_BRIDGE)
	for _, n := range ms {
		all = append(all, Neighbour{MAC: n.Attributes.LLAddress, Link: n.Index, State: n.State})
	}
	return all, err
}

// neighbours lists the entries of a family that have attributes.
func (c *Conn) neighbours(family uint16) (all []rtnetlink.NeighMessage, err error) {
	fail := func(err error) ([]rtnetlink.NeighMessage, error) { return nil, fmt.Errorf("neighbours: %w", err) }
	data, err := (&rtnetlink.NeighMessage{Family: family}).MarshalBinary()
	if err != nil {
		return fail(err)
	}
	ms, err := c.dump(request(unix.RTM_GETNEIGH, 0, data))
	if err != nil {
		return fail(err)
	}
	for _, m := range ms {
		var n rtnetlink.NeighMessage
		if err := n.UnmarshalBinary(m.Data); err != nil {
			return fail(err)
		}
		if n.Attributes != nil {
			all = append(all, n)
		}
	}
	return all, nil
}
