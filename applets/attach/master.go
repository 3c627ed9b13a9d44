package attach

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"cnibox/rtnl"
	"cnibox/spec"
)

// minMTU is what IPv4 needs at least, in bytes: ETH_MIN_MTU, include/uapi/linux/if_ether.h.
const minMTU = 68

// OnMaster are the keys of plugins whose link sits on another one, the master.
type OnMaster struct {
	Master          string `json:"master"` // "": what the plugin says
	MTU             int    `json:"mtu"`    // bytes; 0: the master's
	LinkInContainer bool   `json:"linkInContainer"`
}

// Validate checks what can be checked without looking at the master.
func (c *OnMaster) Validate() error {
	if c.Master == "" {
		return nil
	}
	if err := spec.CheckLinkName(c.Master); err != nil {
		return spec.KeyErrorf("master", `"master" %q: %s`, c.Master, err.Error()) // not wrapped: its code is that of CNI_IFNAME
	}
	return nil
}

// Master finds the master, where the configuration names none the link of the
// default route, and checks that the MTU fits. Nothing has been changed; errors
// have code 7.
func (op *Op) Master(c *OnMaster) (*rtnl.Link, error) {
	where, conn := "on the host", op.Host
	if c.LinkInContainer {
		where, conn = "in "+op.Call.NetNS, op.Cont
	}
	master, err := findMaster(conn, c.Master)
	if err != nil {
		return nil, spec.Errorf(spec.CodeConfig, "%w (looked for %s)", err, where).WithDetails(`"master" must be the name of an existing link`).AtKey("master")
	}
	return master, c.fits(master)
}

// fits checks "mtu" against the master's. The code is 7.
func (c *OnMaster) fits(master *rtnl.Link) error {
	if c.MTU == 0 || c.MTU >= minMTU && c.MTU <= master.MTU {
		return nil
	}
	return spec.Errorf(spec.CodeConfig, "invalid MTU %d, must be [0, master MTU(%d)]", c.MTU, master.MTU).
		WithDetails(`"mtu" must be from %d to %d, or 0 for that of the master, %s`, minMTU, master.MTU, master.Name).AtKey("mtu")
}

// findMaster finds a link by name; "" is the one that a default route of the main
// table leads to, one of IPv4 rather than one of IPv6. Of several the kernel has the
// one of the smallest metric first, and of the hops of a multipath one any will do.
// The reference takes only the single kind, and gives up on the other.
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

// CreateOn makes the container's link on its [Op.Master] and puts the name of that into the
// configuration. Addresses of the link are checked for duplicates, since other hosts share
// the segment. addr may be nil for the kernel's choice. Errors say what is in the way
// where the kernel's number can mean one thing only; os.ErrExist without a
// [spec.Error] is about something else than the name.
func (op *Op) CreateOn(master *rtnl.Link, c *OnMaster, kind rtnl.Kind, addr net.HardwareAddr) error {
	op.DAD, c.Master = true, master.Name
	if _, tagged := kind.(rtnl.Vlan); tagged && !master.Up { // the kernel brings none up
		return spec.Errorf(spec.CodeConfig, "master %s is down: set it up", master.Name)
	}
	conn := op.Host
	if c.LinkInContainer {
		conn = op.Cont
	}
	err := op.CreateEnd(conn, rtnl.LinkSpec{Kind: kind, Parent: master.Index, MTU: c.MTU, MAC: addr})
	if errors.Is(err, unix.EBUSY) {
		return spec.Errorf(spec.CodeBusy, "master %s is taken, by a bridge, a bond or links of another kind on it: %w", master.Name, err)
	}
	return err
}

// CreateEnd makes the container's link, by a socket of the namespace that s.Parent is
// counted in, and enters it into the result as the only interface. It is down, has
// its final name, and goes if ADD fails.
// A name that is taken is an error of code 100.
func (op *Op) CreateEnd(conn *rtnl.Conn, s rtnl.LinkSpec) error {
	if s.Name = op.IfName; conn != op.Cont {
		s.NS = op.NS
	}
	if err := conn.AddLink(s); err != nil {
		return op.refused(err)
	}
	op.Undo("link "+s.Name, func(context.Context) error { return op.Cont.DelLink(s.Name) })
	var err error
	if op.Link, err = op.Cont.Link(s.Name); err != nil {
		return err
	}
	// A passthru macvlan begins with its master's address, whatever it is made with,
	// and hands a later one on to the master, until it goes. The reference forgets it.
	if s.MAC != nil && !bytes.Equal(op.Link.MAC, s.MAC) {
		if err := op.Cont.SetLink(op.Link.Index, rtnl.LinkChange{MAC: s.MAC}); err != nil {
			return err
		}
		op.Link.MAC = s.MAC
	}
	op.Container = op.AddInterface(op.ContainerInterface())
	return nil
}

// refused explains the error with which the kernel does not make the container's link.
// Besides a name that is taken there are other things that exist, as a VLAN on its
// master: those are for the plugin to tell.
func (op *Op) refused(err error) error {
	if !errors.Is(err, os.ErrExist) {
		return lacking(err)
	}
	if _, lerr := op.Cont.Link(op.IfName); errors.Is(lerr, os.ErrNotExist) {
		return err
	}
	return op.Exists(err)
}

// CheckOn compares the container's link with its configuration: it is up, sits on the
// master, which is up too, and has the MTU that it was given. An automatic master is the
// one that it was when the link was made, and has to be there and up, no more: default
// routes change.
func (op *Op) CheckOn(c *OnMaster) error {
	if !op.Link.Up {
		return Mismatch("interface %s in %s is down", op.IfName, op.Call.NetNS)
	}
	if op.Link.PeerNS == c.LinkInContainer {
		return Mismatch("the master of %s is in the wrong network namespace: linkInContainer is %t", op.IfName, c.LinkInContainer)
	}
	conn := op.Host
	if c.LinkInContainer {
		conn = op.Cont
	}
	parent, err := conn.LinkAt(op.Link.Parent)
	if err != nil {
		return Mismatch("master of %s: %w", op.IfName, err)
	}
	if !parent.Up { // with it goes down only a VLAN
		return Mismatch("master %s of %s is down", parent.Name, op.IfName)
	}
	if c.Master != "" {
		if err := op.checkParent(conn, c.Master, parent); err != nil {
			return err
		}
	}
	return op.checkMTU(c.MTU)
}

// checkParent wants the named link to be the parent, or to have the same one: what is
// made on a macvlan or ipvlan the kernel puts on what that sits on.
func (op *Op) checkParent(conn *rtnl.Conn, name string, parent *rtnl.Link) error {
	master, err := conn.Link(name)
	if err != nil {
		return Mismatch("failed to lookup master: %w", err)
	}
	stacked := master.Kind == op.Link.Kind && master.Kind != "vlan" && master.Parent == parent.Index
	if master.Index != parent.Index && !stacked {
		return Mismatch("interface %s sits on %s, not on %s", op.IfName, parent.Name, name)
	}
	return nil
}

// checkMTU wants the MTU of prevResult, in which a later plugin may have entered
// another, or else the one configured. 0 is any: the master's may have changed since.
func (op *Op) checkMTU(want int) error {
	if want == 0 {
		return nil
	}
	if mtu := op.Prev.Interfaces[op.Container].MTU; mtu != 0 {
		want = mtu
	}
	if op.Link.MTU != want {
		return Mismatch("interface %s has MTU %d, not %d", op.IfName, op.Link.MTU, want)
	}
	return nil
}

// lacking explains the kernel's EOPNOTSUPP for a kind of links.
// The code is 50: no ADD can be served on this host.
func lacking(err error) error {
	if errors.Is(err, unix.EOPNOTSUPP) {
		return spec.Errorf(spec.CodeNotReady, "this kernel has no such links, or not the module for them: %w", err)
	}
	return err
}

// ProbeKind is for STATUS: whether the kernel has a kind of links. The one it makes may be
// refused for another reason, as that it sits on none.
func ProbeKind(kind rtnl.Kind) error {
	err := rtnl.InNewNS(func(c *rtnl.Conn) error { return c.AddLink(rtnl.LinkSpec{Name: "probe0", Kind: kind}) })
	if errors.Is(err, unix.EOPNOTSUPP) {
		return lacking(err)
	}
	return nil
}

// ProbeMaster is [ProbeKind], and wants the master to be there with an MTU that fits. One in a container cannot
// be looked for, as STATUS is about none.
func ProbeMaster(c *OnMaster, kind rtnl.Kind) error {
	if err := ProbeKind(kind); err != nil || c.LinkInContainer {
		return err
	}
	conn, err := rtnl.Dial(rtnl.Host())
	if err != nil {
		return err
	}
	defer conn.Close()
	master, err := findMaster(conn, c.Master)
	if err != nil {
		return err
	}
	return c.fits(master)
}
