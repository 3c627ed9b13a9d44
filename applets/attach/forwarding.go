package attach

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// ExplainIPv6Disabled explains EACCES for an address of a link of the host: the link has IPv6
// disabled. The code is 50.
func ExplainIPv6Disabled(err error, link string) error {
	if !errors.Is(err, unix.EACCES) {
		return err
	}
	return spec.Errorf(spec.CodeNotReady, "IPv6 is off on %s: set net/ipv6/conf/%s/disable_ipv6 to 0 on the host, for a new link that of default, or have \"ipam\" give no IPv6 address: %w", link, link, err)
}

// ConfigureVeth is for Host: it adds the addresses and routes that the host-side veth lacks. The
// error is os.ErrExist if a route leads to another link.
func (op *Op) ConfigureVeth(addrs []rtnl.Addr, routes []rtnl.Route) error {
	link := op.Veth
	var haveAddrs []rtnl.Addr
	var haveRoutes []rtnl.Route
	if !op.newVeth { // a new one has none
		var err error
		if haveAddrs, err = op.Host.Addrs(link.Index); err != nil {
			return err
		}
		if haveRoutes, err = op.Host.Routes(rtnl.RouteFilter{Link: link.Index}); err != nil {
			return err
		}
	}
	var ops []rtnl.Op
	var did []string
	for _, a := range addrs {
		if !HasAddr(haveAddrs, a.Prefix) {
			haveAddrs = append(haveAddrs, a)
			ops = append(ops, rtnl.ReplaceAddr(link.Index, a))
			did = append(did, fmt.Sprintf("address %s added to %s", a.Prefix.Addr(), link.Name))
		}
	}
	for _, r := range routes {
		if r.Link = link.Index; !rtnl.HasRoute(haveRoutes, r.Dst) {
			ops = append(ops, rtnl.NewRoute(r))
			did = append(did, fmt.Sprintf("route %s dev %s added", r.Dst.Addr(), link.Name))
		}
	}
	if err := op.Host.Do(ops...); err != nil {
		return ExplainIPv6Disabled(err, link.Name)
	}
	for _, text := range did {
		op.Did("%s", text)
	}
	return nil
}

// SkipDAD lets a link of the host use its link-local address at once.
func (op *Op) SkipDAD(name string) error {
	return netns.Host().SetSysctls(netns.Sysctl{Key: "net/ipv6/conf/" + name + "/accept_dad", Value: "0", Optional: true})
}

// forward turns forwarding on for the families of the result that have a gateway. A failed ADD
// restores the settings, unless other attachments of the host may need them by now.
func (op *Op) forward() error {
	if !op.resources.Routed {
		return nil
	}
	router, err := op.router()
	if err != nil {
		return err
	}
	return op.forwardAt(router)
}

// forwardAt is forward for a link that is known.
func (op *Op) forwardAt(router *rtnl.Link) error {
	for _, f := range forwarding(op.Result.IPs) {
		on, err := op.Host.Forwards(f.family)
		switch {
		case err != nil:
		case !on: // then for every link
			err = op.switchOn(f.key)
		case f.offAt(router):
			err = op.switchOn(f.keyOf(router))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// router returns the link of the host that routes for the container: the pair's end, or the one with
// the gateway addresses.
func (op *Op) router() (*rtnl.Link, error) {
	switch name := op.resources.Link; {
	case name == "":
		return op.Veth, nil
	case op.Bridge != nil && op.Bridge.Name == name:
		return op.Bridge, nil
	default:
		return op.SharedLink(name)
	}
}

// switchOn turns forwarding on by a key of the host or of one link.
func (op *Op) switchOn(key string) error {
	on, back, err := ForwardingOn(op.Host, key)
	if err != nil {
		return err
	}
	op.Undo(key, func(context.Context) error {
		return op.undoIfAlone(func() error { return netns.Host().SetSysctls(back...) })
	})
	err = netns.Host().SetSysctls(on...)
	if errors.Is(err, unix.EROFS) {
		return spec.Errorf(spec.CodeNotReady, "forwarding is off, and cannot be switched on from here: set %s on the host: %w", settingsText(on), err)
	}
	if err != nil {
		return err
	}
	for _, s := range on {
		op.Did("%s set to %s", s.Key, s.Value)
	}
	return nil
}

// settingsText lists settings for a message.
func settingsText(list []netns.Sysctl) string {
	var words []string
	for _, s := range list {
		words = append(words, s.Key+" to "+s.Value)
	}
	return strings.Join(words, ", then ")
}

// undoIfAlone undoes a setting of the host unless it has links of other attachments, or the bridge has
// other ports.
func (op *Op) undoIfAlone(undo func() error) error {
	links, err := op.Host.Links()
	if err != nil {
		return err
	}
	for _, l := range links {
		key := spec.LabelKey(l.Alias)
		if key != op.Key() && (key != "" || op.Bridge != nil && l.Master == op.Bridge.Index) {
			return nil
		}
	}
	return undo()
}

// SharedLink returns a link of the host that attachments share, read once for many of them.
func (op *Op) SharedLink(name string) (*rtnl.Link, error) {
	return session.Ask(op.Call.Session, sharedLink(name), func() (*rtnl.Link, error) { return op.Host.Link(name) })
}

// sharedLink is the key of a link, by name.
type sharedLink string

// forwardingOf is the key of what forward does for a link that routes.
type forwardingOf struct {
	link   string
	v4, v6 bool
}

// restoreForwarding is forward, once for many attachments.
func (op *Op) restoreForwarding() error {
	if !op.resources.Routed {
		return nil
	}
	router, err := op.router() // which once knows as well
	if err != nil {
		return err
	}
	key := forwardingOf{link: op.resources.Link}
	for _, ip := range op.Result.IPs {
		key.v4, key.v6 = key.v4 || ip.Gateway.Is4(), key.v6 || ip.Gateway.Is6()
	}
	if key.link == "" && op.Veth != nil {
		key.link = op.Veth.Name
	}
	return session.Once(op.Call.Session, key, func() error { return op.forwardAt(router) })
}

// ForwardingOff returns the text of CHECK for a forwarding setting of the host that is off. The
// setting concerns all attachments.
func ForwardingOff(key string) string { return fmt.Sprintf("forwarding is off: %s is 0", key) }

// checkForwarding checks that forwarding is on, as the last check, since the setting is the host's.
// A setting that cannot be read, as for a family that the kernel lacks, counts as on.
func (op *Op) checkForwarding() error {
	if !op.resources.Routed {
		return nil
	}
	router, err := op.router()
	if err != nil {
		return Mismatch("forwarding: %w", err)
	}
	for _, f := range forwarding(op.OwnAddresses()) {
		on, err := session.Ask(op.Call.Session, f, func() (bool, error) { return op.Host.Forwards(f.family) })
		switch {
		case err == nil && !on:
			return Mismatch("%s", ForwardingOff(f.key))
		case f.offAt(router):
			return Mismatch("%s", ForwardingOff(f.keyOf(router)))
		}
	}
	return nil
}

// A forwardingKey is the sysctl that makes the host forward packets of a family.
type forwardingKey struct {
	family uint8
	key    string
}

// offAt reports whether a link does not forward packets that come in by it, as where
// conf/default/forwarding was 0 when it was made.
func (f forwardingKey) offAt(l *rtnl.Link) bool {
	return l != nil && (l.Off4 && f.family == unix.AF_INET || l.Off6 && f.family == unix.AF_INET6)
}

// keyOf returns the setting of a link.
func (f forwardingKey) keyOf(l *rtnl.Link) string {
	if f.family == unix.AF_INET {
		return "net/ipv4/conf/" + l.Name + "/forwarding"
	}
	return "net/ipv6/conf/" + l.Name + "/forwarding"
}

// forwarding returns the settings for the families that have a gateway. Like the reference, no verb
// switches them off: others may need them.
func forwarding(ips []spec.IP) []forwardingKey {
	var v4, v6 bool
	for _, ip := range ips {
		v4 = v4 || ip.Gateway.Is4()
		v6 = v6 || ip.Gateway.Is6()
	}
	var all []forwardingKey
	if v4 {
		all = append(all, forwardingKeys[0])
	}
	if v6 {
		all = append(all, forwardingKeys[1])
	}
	return all
}

var forwardingKeys = [...]forwardingKey{{unix.AF_INET, "net/ipv4/ip_forward"}, {unix.AF_INET6, "net/ipv6/conf/all/forwarding"}}

// HasAddr reports whether a link has an address, compared with its host bits and prefix length.
func HasAddr(list []rtnl.Addr, p netip.Prefix) bool {
	for _, a := range list {
		if a.Prefix == p {
			return true
		}
	}
	return false
}
