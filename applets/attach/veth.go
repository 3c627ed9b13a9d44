package attach

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// aliasMax is the length of a link alias: IFALIASZ less its NUL, include/uapi/linux/if.h.
const aliasMax = 255

// HostNames returns the possible names of a host-side veth in the order of attempts, derived from
// the attachment. The second one is for two attachments of a host whose keys share 32 bits. Tools
// such as BuildKit look for links whose name begins with veth.
func HostNames(a spec.Attachment) []string {
	key := a.Key()
	return []string{"veth" + key[8:16], "veth" + key[16:24]}
}

// label returns the alias of the attachment's links, see [spec.Attachment.Label].
func (op *Op) label() *string { return new(op.Attachment.Label(aliasMax)) }

// isForeign reports whether a link has the label of another attachment. A link of the reference has
// no label.
func (op *Op) isForeign(l *rtnl.Link) bool {
	key := spec.LabelKey(l.Alias)
	return key != "" && key != op.Key()
}

// CreateVeth creates a veth pair: op.Link in the container, down, with the requested MAC address or
// a random one, and op.Veth on the host, up, labelled with the attachment and with accept_ra=0
// (CVE-2020-10749). mtu is in bytes, 0 for the kernel's choice; master is the index of op.Bridge, 0 if there is none
// or the host-side veth is to join it later.
func (op *Op) CreateVeth(mtu int, master uint32) error {
	mac, err := op.MAC()
	if err != nil {
		return err
	}
	// The kernel would choose an address too, but it would have to be read back.
	if mac == nil {
		mac = RandomMAC()
	}
	host, err := op.createPair(rtnl.LinkSpec{
		MTU: mtu, MAC: PortMAC(), Master: master, Queues: 1,
		Peer: &rtnl.LinkSpec{Name: op.IfName, NS: op.NS, MTU: mtu, MAC: mac, Queues: 1},
	})
	if err != nil {
		return err
	}
	op.Undo("link "+host.Name, func(context.Context) error { return op.Host.DelLink(host.Name) })
	if err := op.labelAndSetUp(host); err != nil {
		return err
	}
	// the peer's index is the host-side veth's IFLA_LINK: no look-up in the container
	op.Link = &rtnl.Link{Index: host.Parent, Name: op.IfName, Kind: "veth", MAC: mac, MTU: host.MTU}
	op.Veth, op.newVeth = host, true
	return op.IgnoreRouters(host)
}

// labelAndSetUp gives a new host-side veth its alias and sets it up. It is created down: a link that
// is up and has no carrier yet would be deactivated when it is read, which waits for RCU. A port of
// a bridge gets no IPv6 link-local address when the peer comes up: only the bridge sends and
// receives packets of the host. Each address has two routes, and the kernel walks all routes of the
// host when it deletes a link. Until it has joined the bridge it must not answer for the gateway, so
// that the container has the MAC address of the bridge: it has no ARP.
func (op *Op) labelAndSetUp(host *rtnl.Link) error {
	port := op.Bridge != nil
	ch := rtnl.LinkChange{Alias: op.label(), Up: new(true), AddrGenModeNone: port}
	if port && host.Master == 0 {
		ch.ARP = new(false)
	}
	err := op.Host.Do(rtnl.ChangeLink(host.Index, ch)) // by the index: the name may be that of another attachment
	if port && errors.Is(err, unix.EAFNOSUPPORT) {     // the kernel has no IPv6, or not for an MTU below 1280; nothing was changed
		ch.AddrGenModeNone = false
		err = op.Host.Do(rtnl.ChangeLink(host.Index, ch))
	}
	host.Up = err == nil
	return err
}

// IgnoreRouters sets accept_ra=0 on a link of the host (CVE-2020-10749), if it is not 0. Where
// /proc/sys is read-only it warns the administrator.
func (op *Op) IgnoreRouters(l *rtnl.Link) error {
	if l.AcceptRA == 0 {
		return nil
	}
	l.AcceptRA = 0
	err := netns.Host().SetSysctls(netns.Sysctl{Key: "net/ipv6/conf/" + l.Name + "/accept_ra", Value: "0", Differs: true})
	if errors.Is(err, unix.EROFS) {
		op.Warn("router advertisements of containers may reach the host (CVE-2020-10749): set net/ipv6/conf/default/accept_ra to 0 there: %v", err)
		return nil
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// createPair tries the host names in turn, and skips those of other attachments. A link of this
// attachment was not released, which is an error. One message creates both links, in their
// namespaces and with their final names.
func (op *Op) createPair(s rtnl.LinkSpec) (*rtnl.Link, error) {
	var err error
	for _, s.Name = range HostNames(op.Attachment) {
		var host *rtnl.Link
		if host, err = op.Host.CreateLink(s); err == nil {
			return host, nil
		}
		if !errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("failed to make veth pair: %w", err)
		}
		taken, lerr := op.Host.Link(s.Name)
		if lerr != nil {
			break
		}
		if spec.LabelKey(taken.Alias) != op.Key() {
			continue
		}
		if _, lerr := op.Cont.Link(op.IfName); errors.Is(lerr, os.ErrNotExist) {
			return nil, spec.Errorf(spec.CodeBusy, "%s is attached to another namespace: its host-side veth %s is there; DEL it first: %w", op.Attachment, s.Name, err)
		}
		break
	}
	return nil, op.ExplainExists(err)
}

// SetVethUp is for Host: it sets the host-side veth up, with accept_ra=0.
func (op *Op) SetVethUp() error {
	if err := op.IgnoreRouters(op.Veth); err != nil {
		return err
	}
	if op.Veth.Up {
		return nil
	}
	if err := op.Host.Do(rtnl.ChangeLink(op.Veth.Index, rtnl.LinkChange{Up: new(true)})); err != nil {
		return err
	}
	op.Veth.Up = true
	op.Did("%s up", op.Veth.Name)
	return nil
}

// hostVethTime bounds the wait for a host-side veth, which takes a millisecond.
const hostVethTime = 3 * time.Second

// waitVeth waits until the host-side veth carries packets; the error has code 11. Without it the
// first packets to the container would be lost, and a port would drop the announcement of the
// addresses before it forwards.
func (op *Op) waitVeth() error {
	if op.Veth == nil || op.resources.Down {
		return nil
	}
	ctx, cancel := context.WithTimeout(op.Context(), hostVethTime)
	defer cancel()
	err := op.Host.WaitUp(ctx, op.Veth.Index)
	if err != nil && op.Bridge != nil {
		err = fmt.Errorf("bridge port in error state: %s in %s: %w", op.Veth.Name, op.Bridge.Name, err)
	}
	if err != nil {
		return spec.Errorf(spec.CodeTryAgain, "host-side veth of %s: %w", op.Attachment, err)
	}
	return nil
}

// HostVeth finds the host-side veth of the attachment by its label: first under its own names, then
// as the peer of the container's link, since it may have been renamed. A pair of the reference has
// no label and is found by the form of its name. Other pairs in the container are not the plugin's.
// The error is os.ErrNotExist if there is none.
func (op *Op) HostVeth() (*rtnl.Link, error) {
	for _, name := range HostNames(op.Attachment) {
		host, err := op.hostLink(name)
		if err == nil && spec.LabelKey(host.Alias) == op.Key() {
			return host, nil
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	if op.NS == nil {
		return nil, fmt.Errorf("host-side veth of %s: %w", op.Attachment, os.ErrNotExist)
	}
	cont, err := op.Cont.Link(op.IfName)
	if err != nil {
		return nil, err
	}
	host, err := op.Host.VethPeer(cont, op.NS)
	if err != nil {
		return nil, err
	}
	if key := spec.LabelKey(host.Alias); key != op.Key() && (key != "" || !spec.Hashed(host.Name, "veth", 8)) {
		return nil, fmt.Errorf("host-side veth of %s: %s of %s in %s is not its own: %w", op.Attachment, host.Name, op.IfName, op.Call.NetNS, os.ErrNotExist)
	}
	return host, nil
}

// hostLink is [rtnl.Conn.Link] on the host. DELs of many attachments read the list of links once.
func (op *Op) hostLink(name string) (*rtnl.Link, error) {
	if op.Call.Verb != spec.Del || !op.Call.Session.Many() {
		return op.Host.Link(name)
	}
	links, err := session.Ask(op.Call.Session, hostLinks{}, func() (map[string]*rtnl.Link, error) {
		all, err := op.Host.Links()
		links := make(map[string]*rtnl.Link, len(all))
		for i := range all {
			links[all[i].Name] = &all[i]
		}
		return links, err
	})
	if l := links[name]; l != nil || err != nil {
		return l, err
	}
	return nil, fmt.Errorf("link %s: %w", name, os.ErrNotExist)
}

// hostLinks is the key of all links of the host, by name.
type hostLinks struct{}

// hasHostVeth reports whether the host-side veth is found without entering the container.
func (op *Op) hasHostVeth() bool {
	if !op.plugin.Veth {
		return false
	}
	_, err := op.HostVeth()
	return err == nil
}

// findPort finds the host-side veth and its bridge, for a plugin that makes a pair.
func (op *Op) findPort() (err error) {
	if !op.plugin.Veth {
		return nil
	}
	if op.Veth, err = op.HostVeth(); err != nil || op.Veth.Master == 0 {
		return err
	}
	op.Bridge, err = op.Host.LinkAt(op.Veth.Master)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("bridge of %s: %w", op.Veth.Name, err)
	}
	return nil
}

// checkVeth finds the host-side veth. Each veth must be the peer of the other, since indexes repeat
// in other namespaces.
func (op *Op) checkVeth() (err error) {
	if !op.plugin.Veth {
		return nil
	}
	if op.Veth, err = op.HostVeth(); err != nil {
		return Lost("host interface: %w", err)
	}
	switch {
	case op.Veth.Parent != op.Link.Index || op.Link.Parent != op.Veth.Index:
		return Lost("%s is not the peer of %s in %s", op.Veth.Name, op.IfName, op.Call.NetNS)
	case !op.Veth.Up:
		return Mismatch("%s is down", op.Veth.Name)
	}
	return nil
}

// removeVeth deletes the pair by its host-side veth. This works also after the path of the namespace is gone. A missing pair is not an
// error.
func (op *Op) removeVeth() error {
	host, err := op.HostVeth()
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	op.Veth = host
	return rtnl.DelLater(op.Call.Session, host)
}

// HostInterface returns the result's entry for a link on the host, which has no sandbox.
func HostInterface(l *rtnl.Link) spec.Interface {
	return spec.Interface{Name: l.Name, MAC: l.MAC.String(), MTU: l.MTU}
}

// PortMAC returns a random MAC address for a port of a bridge, higher than those of network cards:
// a bridge uses the lowest address of its ports, which should stay that of the uplink.
func PortMAC() net.HardwareAddr {
	port := RandomMAC()
	port[0] = 0xfe
	return port
}

// RandomMAC returns a random unicast MAC address, locally administered.
func RandomMAC() net.HardwareAddr {
	n := rand.Uint64()
	return net.HardwareAddr{byte(n)&^1 | 2, byte(n >> 8), byte(n >> 16), byte(n >> 24), byte(n >> 32), byte(n >> 40)}
}
