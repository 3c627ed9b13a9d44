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

// Fixed is the word of ip-neighbour(8) for an entry that stays, and of which the kernel asks nobody:
// "permanent" or "noarp"; empty for any other.
func (n Neighbour) Fixed() string {
	switch {
	case n.State&unix.NUD_PERMANENT != 0:
		return "permanent"
	case n.State&unix.NUD_NOARP != 0:
		return "noarp"
	}
	return ""
}

// Neighbours returns the entries of both families.
func (c *Conn) Neighbours() ([]Neighbour, error) {
	fail := func(err error) ([]Neighbour, error) { return nil, fmt.Errorf("neighbours: %w", err) }
	data, err := new(rtnetlink.NeighMessage).MarshalBinary()
	if err != nil {
		return fail(err)
	}
	ms, err := c.dump(request(unix.RTM_GETNEIGH, 0, data))
	if err != nil {
		return fail(err)
	}
	var all []Neighbour
	for _, m := range ms {
		var n rtnetlink.NeighMessage
		if err := n.UnmarshalBinary(m.Data); err != nil {
			return fail(err)
		}
		if n.Attributes == nil {
			continue
		}
		if addr, ok := netip.AddrFromSlice(n.Attributes.Address); ok {
			all = append(all, Neighbour{addr.Unmap(), n.Attributes.LLAddress, n.Index, n.State})
		}
	}
	return all, nil
}
