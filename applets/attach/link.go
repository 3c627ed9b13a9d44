package attach

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// CreateContainerLink creates the container's link on a socket of the namespace of s.Parent, and
// sets op.Link. The link is down, has its final name, and is deleted if ADD fails. A name in use is
// an error of code 100.
func (op *Op) CreateContainerLink(conn *rtnl.Conn, s rtnl.LinkSpec) error {
	if s.Name = op.IfName; conn != op.Cont {
		s.NS = op.NS
	}
	if err := conn.AddLink(s); err != nil {
		return op.explainCreate(err)
	}
	op.Undo("link "+s.Name, func(context.Context) error { return op.Cont.DelLink(s.Name) })
	var err error
	if op.Link, err = op.Cont.Link(s.Name); err != nil {
		return err
	}
	// A macvlan of mode passthru is created with its master's address. Until it is deleted, it
	// copies an address that is set later to the master.
	if s.MAC != nil && !bytes.Equal(op.Link.MAC, s.MAC) {
		if err := op.Cont.SetLink(op.Link.Index, rtnl.LinkChange{MAC: s.MAC}); err != nil {
			return err
		}
		op.Link.MAC = s.MAC
	}
	return nil
}

// explainCreate explains the kernel's error for the container's link. EEXIST may have another
// reason than the name, such as a VLAN of the master; the plugin explains that.
func (op *Op) explainCreate(err error) error {
	if !errors.Is(err, os.ErrExist) {
		return explainUnsupported(err)
	}
	if _, lerr := op.Cont.Link(op.IfName); errors.Is(lerr, os.ErrNotExist) {
		return err
	}
	return op.ExplainExists(err)
}

// ExplainExists explains EEXIST for the container's link. The code is 100.
func (op *Op) ExplainExists(err error) error {
	if !errors.Is(err, os.ErrExist) {
		return err
	}
	return spec.Errorf(spec.CodeBusy, "container interface name %q already exists in %s; DEL the attachment that owns it first: %w",
		op.IfName, op.Call.NetNS, err)
}

// explainUnsupported explains the kernel's EOPNOTSUPP for a kind of links.
// The code is 50: no ADD can be served on this host.
func explainUnsupported(err error) error {
	if errors.Is(err, unix.EOPNOTSUPP) {
		return spec.Errorf(spec.CodeNotReady, "this kernel does not support this type of link, or lacks its module: %w", err)
	}
	return err
}

// isKind reports whether a link is of the plugin's kind.
func (op *Op) isKind(l *rtnl.Link) bool { return op.plugin.Kind == "" || l.Kind == op.plugin.Kind }

// checkLink finds the container's link in prevResult and in the container, and sets op.Link and
// op.Container for later checks. It does not compare the MTU: tuning may have set it.
func (op *Op) checkLink() error {
	op.Container = op.containerLink()
	if op.Container < 0 {
		return Lost("prevResult has no interface %q in sandbox %q", op.IfName, op.Call.NetNS)
	}
	link, err := op.Cont.Link(op.IfName)
	if errors.Is(err, os.ErrNotExist) {
		return op.noInterface()
	}
	if err != nil {
		return Lost("container interface: %w", err)
	}
	op.Link = link
	if !op.isKind(link) {
		return Lost("interface %s in %s is of kind %q, not %q", op.IfName, op.Call.NetNS, link.Kind, op.plugin.Kind)
	}
	if err := CheckMAC(link, op.Prev.Interfaces[op.Container].MAC); err != nil {
		return err
	}
	if !link.Up && !op.resources.Down {
		return Mismatch("interface %s is down in %s", op.IfName, op.Call.NetNS)
	}
	return nil
}

// noInterface returns the error of CHECK and RESTORE about the container's link.
func (op *Op) noInterface() error { return Lost("no interface %s in %s", op.IfName, op.Call.NetNS) }

// CheckMAC compares a link's address with that of a result; an empty one matches any.
func CheckMAC(link *rtnl.Link, want string) error {
	if want == "" {
		return nil
	}
	addr, err := spec.HardwareAddr(want)
	if err != nil {
		return spec.Errorf(spec.CodeConfig, "prevResult: interface %s: %w", link.Name, err)
	}
	if !bytes.Equal(addr, link.MAC) {
		return Lost("interface %s has MAC address %s, not %s", link.Name, link.MAC, addr)
	}
	return nil
}

// containerLink returns the index of the container's link in prevResult; -1: not found. It compares
// sandboxes as namespaces, not as paths.
func (op *Op) containerLink() int {
	for i, itf := range op.Prev.Interfaces {
		if itf.Name == op.IfName && op.isNS(itf.Sandbox) {
			return i
		}
	}
	return -1
}

// isNS reports whether a sandbox is the container's namespace.
func (op *Op) isNS(sandbox string) bool { return op.NS.IsAt(sandbox) }

// Recorded returns, for RESTORE, the MAC address and the MTU in prevResult of an interface on the
// host or in the container's namespace; nil and 0: none.
func (op *Op) Recorded(name string, onHost bool) (mac net.HardwareAddr, mtu int) {
	if !op.Restoring() {
		return nil, 0
	}
	for _, i := range op.Prev.Interfaces {
		if i.Name == name && (i.Sandbox == "") == onHost {
			mac, _ = spec.HardwareAddr(i.MAC) // an external plugin may have written something else
			return mac, i.MTU
		}
	}
	return nil, 0
}

// restoreLink finds the container's link and sets it up.
func (op *Op) restoreLink() (err error) {
	op.Link, err = op.Cont.Link(op.IfName)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return op.noInterface()
	case err != nil:
		return err
	case !op.isKind(op.Link) || op.isForeign(op.Link):
		return Lost("interface %s in %s is not of this attachment: kind %q, alias %q", op.IfName, op.Call.NetNS, op.Link.Kind, op.Link.Alias)
	case op.Link.Up || op.resources.Down:
		return nil
	}
	if err := op.Cont.Do(rtnl.ChangeLink(op.Link.Index, rtnl.LinkChange{Up: new(true)})); err != nil {
		return op.explainInUse(err)
	}
	op.Did("%s up", op.IfName)
	return nil
}

// removeLink deletes the pair, or the link named IfName in the container if it is of the plugin's
// kind and does not have the alias of another attachment. A missing link is not an error. Another
// link may have the name, since runtimes run DEL after a failed ADD. removeLink runs concurrently
// with other steps, on any thread: it uses sockets only.
func (op *Op) removeLink() error {
	if op.plugin.Veth {
		return op.removeVeth()
	}
	if op.Cont == nil {
		return nil
	}
	link, err := op.Cont.Link(op.IfName)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !op.isKind(link) || op.isForeign(link) {
		op.Warn("%s in %s is not of %s: kind %q, alias %q: left alone", op.IfName, op.Call.NetNS, op.Attachment, link.Kind, link.Alias)
		return nil
	}
	return op.Cont.DelLink(op.IfName)
}

// collectLinks deletes the host-side veths with the label of an attachment of this network that is
// not in the valid set. Links of other kinds are on the host only if it is a container itself, of a
// network of the same name.
func (op *Op) collectLinks() error {
	stale := op.Stale()
	return op.Host.DelLinks(func(l *rtnl.Link) bool { return l.Kind == "veth" && stale(l.Alias) }, nil)
}

// ProbeKind checks, for STATUS, that the kernel has a kind of links. It ignores other errors, such
// as the missing parent of the probe.
func ProbeKind(kind rtnl.Kind) error {
	err := rtnl.InNewNS(func(c *rtnl.Conn) error { return c.AddLink(rtnl.LinkSpec{Name: "probe0", Kind: kind}) })
	if errors.Is(err, unix.EOPNOTSUPP) {
		return explainUnsupported(err)
	}
	return nil
}
