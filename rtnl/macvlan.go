package rtnl

import (
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/nlconn"
)

// A MacvlanMode says which macvlans of the same parent a macvlan reaches: none (private), all
// through an external switch that returns the frames (vepa), or all directly (bridge). With
// passthru the parent has only one macvlan. The zero value is not a mode.
type MacvlanMode uint32

// The modes: include/uapi/linux/if_link.h, enum macvlan_mode.
const (
	MacvlanPrivate  MacvlanMode = 1
	MacvlanVEPA     MacvlanMode = 2
	MacvlanBridge   MacvlanMode = 4
	MacvlanPassthru MacvlanMode = 8
)

// ParseMacvlanMode parses a mode's name in ip(8); "" is bridge.
func ParseMacvlanMode(s string) (MacvlanMode, error) {
	switch s {
	case "", "bridge":
		return MacvlanBridge, nil
	case "private":
		return MacvlanPrivate, nil
	case "vepa":
		return MacvlanVEPA, nil
	case "passthru":
		return MacvlanPassthru, nil
	}
	return 0, fmt.Errorf("unknown macvlan mode: %q", s)
}

// String returns the mode's name in ip(8), or its number if it has no name.
func (m MacvlanMode) String() string {
	switch m {
	case MacvlanPrivate:
		return "private"
	case MacvlanVEPA:
		return "vepa"
	case MacvlanBridge:
		return "bridge"
	case MacvlanPassthru:
		return "passthru"
	}
	return fmt.Sprintf("mode %d", uint32(m))
}

// A Macvlan is a sub-interface of [LinkSpec.Parent] with its own MAC address. It reaches the
// parent's own addresses only through an external switch. In passthru mode it has the parent's MAC
// address; changing it also changes the parent's until the macvlan is deleted.
type Macvlan struct {
	Mode MacvlanMode // 0: the kernel's choice, vepa

	// BCQueueLen is how many broadcast and multicast packets may wait for delivery to the macvlans
	// of the parent; 0: the kernel's choice, 1000. The longest requested value of these macvlans
	// applies. Kernels before 5.11 ignore it.
	BCQueueLen uint32
}

func (Macvlan) kind() string { return "macvlan" }

// encode writes IFLA_MACVLAN_*, include/uapi/linux/if_link.h; the kernel itself rejects invalid
// modes.
func (m Macvlan) encode(ae *netlink.AttributeEncoder) error {
	if m.Mode != 0 {
		ae.Uint32(unix.IFLA_MACVLAN_MODE, uint32(m.Mode))
	}
	if m.BCQueueLen != 0 {
		ae.Uint32(unix.IFLA_MACVLAN_BC_QUEUE_LEN, m.BCQueueLen)
	}
	return nil
}

// decodeMacvlan is the reverse of encode; attributes that the kernel does not report are zero.
func decodeMacvlan(data []byte) Macvlan {
	return Macvlan{
		Mode:       MacvlanMode(number(nlconn.Attribute(data, unix.IFLA_MACVLAN_MODE))),
		BCQueueLen: number(nlconn.Attribute(data, unix.IFLA_MACVLAN_BC_QUEUE_LEN)),
	}
}
