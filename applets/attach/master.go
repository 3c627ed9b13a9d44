package attach

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// minMTU is ETH_MIN_MTU, include/uapi/linux/if_ether.h, in bytes.
const minMTU = 68

// OnMaster has the keys of plugins whose link has a parent, the master, and their [Defaults].
type OnMaster struct {
	Defaults
	Master          string `json:"master"` // "": the plugin's default
	MTU             int    `json:"mtu"`    // bytes; 0: the master's
	LinkInContainer bool   `json:"linkInContainer"`
}

// Validate checks what can be checked without looking at the master.
func (c *OnMaster) Validate(*spec.Request) error {
	if c.Master == "" {
		return nil
	}
	if err := spec.CheckLinkName(c.Master); err != nil {
		return spec.KeyErrorf("master", `"master" %q: %s`, c.Master, err.Error()) // not wrapped: its code is that of CNI_IFNAME
	}
	return nil
}

// Master finds the configured master, or else the link of the default route, and checks that the
// MTU fits. It changes nothing; errors have code 7.
func (op *Op) Master(c *OnMaster) (*rtnl.Link, error) {
	where, conn := "on the host", op.Host
	if c.LinkInContainer {
		where, conn = "in "+op.Call.NetNS, op.Cont
	}
	master, err := findMaster(conn, c.Master)
	if err != nil {
		return nil, spec.Errorf(spec.CodeConfig, "%w (looked for %s)", err, where).WithDetails(`"master" must be the name of an existing link`).AtKey("master")
	}
	return master, c.checkMTU(master)
}

// checkMTU checks "mtu" against the master's. The code is 7.
func (c *OnMaster) checkMTU(master *rtnl.Link) error {
	if c.MTU == 0 || c.MTU >= minMTU && c.MTU <= master.MTU {
		return nil
	}
	return spec.Errorf(spec.CodeConfig, "invalid MTU %d, must be [0, master MTU(%d)]", c.MTU, master.MTU).
		WithDetails(`"mtu" must be from %d to %d, or 0 for that of the master, %s`, minMTU, master.MTU, master.Name).AtKey("mtu")
}

// findMaster finds a link by name. "" is the link of a default route in the main table, IPv4 before
// IPv6. Of several routes it uses the one with the smallest metric, which the kernel lists first;
// of a multipath route any hop.
func findMaster(conn *rtnl.Conn, name string) (*rtnl.Link, error) {
	if name != "" {
		l, err := conn.Link(name)
		if err != nil {
			return nil, fmt.Errorf("failed to lookup master %q: %w", name, err)
		}
		return l, nil
	}
	for _, all := range [...]netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		routes, err := conn.Routes(rtnl.RouteFilter{Dst: netip.PrefixFrom(all, 0)})
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			if r.Link != 0 && r.Type == unix.RTN_UNICAST {
				return conn.LinkAt(r.Link)
			}
		}
	}
	return nil, fmt.Errorf("no default route interface found: set \"master\": %w", unix.ENODEV)
}

// Resources are a segment shared with other hosts, and the parent.
func (c *OnMaster) Resources() spec.Resources {
	if c.LinkInContainer {
		return spec.Resources{Shared: true}
	}
	return spec.Resources{Shared: true, Parent: c.Master, Stacked: true}
}

// CreateOn creates the container's link on its [Op.Master] and enters the master's name into the
// configuration. A nil addr leaves the address to the kernel. os.ErrExist without a [spec.Error]
// has another reason than the name.
func (op *Op) CreateOn(master *rtnl.Link, c *OnMaster, kind rtnl.Kind, addr net.HardwareAddr) error {
	c.Master = master.Name
	if _, tagged := kind.(rtnl.Vlan); tagged && !master.Up { // the kernel does not set the master up
		return spec.Errorf(spec.CodeConfig, "master %s is down: set it up", master.Name)
	}
	conn := op.Host
	if c.LinkInContainer {
		conn = op.Cont
	}
	err := op.CreateContainerLink(conn, rtnl.LinkSpec{Kind: kind, Parent: master.Index, MTU: c.MTU, MAC: addr})
	if errors.Is(err, unix.EBUSY) {
		return spec.Errorf(spec.CodeBusy, "master %s is taken, by a bridge, a bond or links of another kind on it: %w", master.Name, err)
	}
	return err
}

// CheckOn compares the parent and the MTU of the container's link with the configuration. An
// automatic master only has to exist, since default routes change. A master that is down is a
// warning: its cable may be unplugged, and nothing of the attachment is missing.
func (op *Op) CheckOn(c *OnMaster) error {
	if op.Link.PeerNS == c.LinkInContainer {
		return Lost("the master of %s is in the wrong network namespace: linkInContainer is %t", op.IfName, c.LinkInContainer)
	}
	conn := op.Host
	if c.LinkInContainer {
		conn = op.Cont
	}
	parent, err := conn.LinkAt(op.Link.Parent)
	if err != nil {
		return Lost("master of %s: %w", op.IfName, err)
	}
	if !parent.Up { // a VLAN goes down with its parent
		op.Warn("master %s of %s is down", parent.Name, op.IfName)
	}
	if c.Master != "" {
		if err := op.checkParent(conn, c.Master, parent); err != nil {
			return err
		}
	}
	return op.checkMTU(c.MTU)
}

// checkParent checks that the named link is the parent, or has the same parent: the parent of a
// link that was created on a macvlan or ipvlan is the parent of that.
func (op *Op) checkParent(conn *rtnl.Conn, name string, parent *rtnl.Link) error {
	master, err := conn.Link(name)
	if err != nil {
		return Lost("failed to lookup master: %w", err)
	}
	stacked := master.Kind == op.Link.Kind && master.Kind != "vlan" && master.Parent == parent.Index
	if master.Index != parent.Index && !stacked {
		return Lost("the master of interface %s is %s, not %s", op.IfName, parent.Name, name)
	}
	return nil
}

// checkMTU compares the MTU with that of prevResult, which a later plugin may have changed, or with
// the configured one. 0 matches any: the master's may have changed since.
func (op *Op) checkMTU(want int) error {
	if want == 0 {
		return nil
	}
	if mtu := op.Prev.Interfaces[op.Container].MTU; mtu != 0 {
		want = mtu
	}
	if op.Link.MTU != want {
		return Lost("interface %s has MTU %d, not %d", op.IfName, op.Link.MTU, want)
	}
	return nil
}

// ProbeMaster is [ProbeKind], and also checks that the master exists and that its MTU fits, unless
// the master is in a container.
func (op *Op) ProbeMaster(c *OnMaster, kind rtnl.Kind) error {
	if err := ProbeKind(kind); err != nil || c.LinkInContainer {
		return err
	}
	master, err := findMaster(op.Host, c.Master)
	if err != nil {
		return err
	}
	return c.checkMTU(master)
}
