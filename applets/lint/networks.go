package lint

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/spec"
)

// A network is a list of a file, with its plugins.
type network struct {
	list    *chain.List
	members []*member
}

// A member is a plugin of a list, with the result of its own check.
type member struct {
	*chain.Plugin
	builtIn   *spec.Plugin // nil: an external plugin
	resources spec.Resources
	err       error
	ofIPAM    bool // the error is that of the IPAM plugin
}

// network finds the plugins of a list.
func (c *checker) network(l *chain.List) *network {
	n := &network{list: l}
	for i := range l.Plugins {
		m := &member{Plugin: &l.Plugins[i]}
		m.builtIn, _ = builtIn{c.Applets}.Find(m.Type)
		n.members = append(n.members, m)
	}
	return n
}

// validate runs the checks of the plugins; if c is quick only of those with addresses.
func (c *checker) validate(n *network) {
	for _, m := range n.members {
		if m.builtIn != nil && (m.IPAM != "" || !c.quick) {
			m.validate(n.list, c.Applets)
		}
	}
}

// validate runs the plugin's own check. Ranges may come from the runtime, if that capability is
// enabled.
func (m *member) validate(l *chain.List, applets applet.Table) {
	verb := spec.Add
	if m.Capabilities["ipRanges"] {
		verb = spec.Status
	}
	runner := chain.Runner{Invoker: builtIn{applets}, Warn: func(string, ...any) {}} // ADD logs the warnings
	r, err := runner.Request(verb, l, m.Plugin, chain.RuntimeConf{ContainerID: "lint", IfName: "eth0", NetNS: "/run/netns/lint"})
	if err != nil {
		m.err = err
		return
	}
	if m.resources, m.err = r.Validate(m.Type); m.err != nil && m.IPAM != "" {
		_, of := r.Validate(m.IPAM)
		m.ofIPAM = of != nil
	}
	if l.CNIVersion == "" && m.err != nil && spec.AsError(m.err).Code == spec.CodeVersion {
		m.err = fmt.Errorf(`%w; without "cniVersion" it is the first one`, m.err)
	}
}

// A HostRoute is a route of the host's main table.
type HostRoute struct {
	Dst       netip.Prefix
	Link      string
	Alias     string // of the link, which has the label of an attachment
	Connected bool   // to a network in which the host has an address
}

// An Attached is a live attachment, with the addresses of its interface.
type Attached struct {
	spec.Attachment
	Addresses []netip.Prefix
}

// compare compares a network with others, and with the routes of the host. Two networks of one name
// in a directory are a mistake: a runtime uses one of them.
func (c *checker) compare(n *network, others []*network) {
	for _, other := range others {
		if n.list.Name == other.list.Name && filepath.Dir(n.list.File) == filepath.Dir(other.list.File) {
			used := first(n, other)
			unused := n
			if used == n {
				unused = other
			}
			c.addAs(Risk, unused.list.File, "name", "network %q is in %s too, which is used instead", n.list.Name, used.list.File)
			break
		}
	}
	for j, m := range n.members {
		for _, r := range m.resources.Ranges {
			route := c.shadows(n, m, r)
			if route != nil && !belongsToAny(others, route) {
				c.shadowed(m, r, route)
				continue
			}
			found := c.overlaps(n, m, r, n, n.members[:j])
			for _, other := range others {
				found = found || other.list.Name != n.list.Name && c.overlaps(n, m, r, other, other.members)
			}
			if !found && route != nil { // the other network was changed since
				c.shadowed(m, r, route)
			}
		}
	}
}

// belongsToAny reports whether a route is that of a link of one of the networks.
func belongsToAny(networks []*network, route *HostRoute) bool {
	return slices.ContainsFunc(networks, func(n *network) bool {
		return spec.LabelOf(route.Alias, n.list.Name) || slices.ContainsFunc(n.members, func(m *member) bool { return m.resources.Link == route.Link })
	})
}

// An otherNetwork is one that many are compared with. Its members are found when they are first needed.
type otherNetwork struct {
	network
	prefixes []netip.Prefix // all that its configuration has, whatever they are for, but for default routes
}

func newOtherNetwork(l *chain.List) *otherNetwork {
	o := &otherNetwork{network: network{list: l}}
	for text := range strings.SplitSeq(string(l.Doc()), `"`) {
		if p, err := netip.ParsePrefix(text); err == nil && p.Bits() > 0 {
			o.prefixes = append(o.prefixes, p)
		}
	}
	return o
}

// mayOverlap reports whether a range of n overlaps a prefix of the configuration, which is cheaper than to
// have its plugins decode it.
func (o *otherNetwork) mayOverlap(n *network) bool {
	for _, m := range n.members {
		for _, r := range m.resources.Ranges {
			if slices.ContainsFunc(o.prefixes, r.Subnet.Overlaps) {
				return true
			}
		}
	}
	return false
}

// first returns that of two files which a runtime uses: a list before a configuration of one
// plugin, then by name.
func first(a, b *network) *network {
	single := func(n *network) bool { return filepath.Ext(n.list.File) != ".conflist" }
	switch {
	case single(a) != single(b):
		if single(a) {
			return b
		}
		return a
	case a.list.File < b.list.File:
		return a
	}
	return b
}

// overlaps notes a range with addresses of another network. Attachments of that have such
// addresses, or the host would route its subnet to two links.
func (c *checker) overlaps(n *network, m *member, r spec.Range, another *network, others []*member) bool {
	for _, other := range others {
		if differentSegments(m, other) {
			continue
		}
		for _, o := range other.resources.Ranges {
			text := ""
			switch {
			case r.First.BitLen() == o.First.BitLen() && r.First.Compare(o.Last) <= 0 && o.First.Compare(r.Last) <= 0:
				text = fmt.Sprintf("addresses of %s of network %q are given out by network %q as well, %s in %s", asConfigured(r), n.list.Name, another.list.Name, asConfigured(o), other.From.File)
			case m.resources.Routed && other.resources.Routed && m.resources.Link != other.resources.Link && r.Subnet.Overlaps(o.Subnet):
				text = fmt.Sprintf("%s of network %q overlaps with %s of network %q in %s: the host can route it to one link", r.Subnet, n.list.Name, o.Subnet, another.list.Name, other.From.File)
			default:
				continue
			}
			c.addRangeProblem(Risk, m, r, text)
			return true
		}
	}
	return false
}

// differentSegments reports whether two networks are on different segments and the host does not
// route to either: they may have the same addresses.
func differentSegments(a, b *member) bool {
	type segment struct {
		link, Master string
		VLAN, VLANID int
	}
	of := func(m *member) segment {
		s := segment{link: m.resources.Link}
		_ = json.Unmarshal(m.Conf(), &s) // its own check reports errors
		return s
	}
	return !a.resources.Routed && !b.resources.Routed && of(a) != of(b)
}

// asConfigured returns a range as it is configured: a subnet, or a single address in one.
func asConfigured(r spec.Range) netip.Prefix {
	if r.First == r.Last {
		return netip.PrefixFrom(r.First, r.Subnet.Bits())
	}
	return r.Subnet
}

// shadows returns the route of the host that leads a part of a network's range to another link;
// nil: none.
func (c *checker) shadows(n *network, m *member, r spec.Range) *HostRoute {
	if !m.resources.Routed {
		return nil
	}
	for i := range c.Routes {
		route := &c.Routes[i]
		if route.Link == m.resources.Link || spec.LabelOf(route.Alias, n.list.Name) || !r.Subnet.Overlaps(route.Dst) || isWider(route, r) && !route.Connected {
			continue
		}
		return route
	}
	return nil
}

// isWider reports whether a route is wider than the subnet, whose own route then takes precedence.
func isWider(route *HostRoute, r spec.Range) bool { return route.Dst.Bits() < r.Subnet.Bits() }

// shadowed notes a route that [checker.shadows] has found.
func (c *checker) shadowed(m *member, r spec.Range, route *HostRoute) {
	text := "%s: the host has a route to %s by %s, so it does not reach containers there"
	if isWider(route, r) {
		text = "%s is a part of the host's network %s on %s: the host does not reach what is there any more"
	}
	c.addRangeProblem(Risk, m, r, fmt.Sprintf(text, r.Subnet, route.Dst, route.Link))
}

// addRangeProblem notes a problem of a range at its key.
func (c *checker) addRangeProblem(severity Severity, m *member, r spec.Range, text string) {
	c.note(problem{severity: severity, file: m.From.File, key: spec.JoinKeys(m.From.Key, "ipam"), value: asConfigured(r).String(), text: text})
}

// host notes what a configuration needs from this host or the list and does not find there.
func (c *checker) host(m *member) {
	var conf struct {
		RuntimeConfig struct{ PortMappings json.RawMessage }
	}
	if json.Unmarshal(m.Conf(), &conf) != nil {
		return
	}
	if parent := m.resources.Parent; parent != "" && c.HasLink != nil && !c.HasLink(parent) {
		c.add(m.From.File, spec.JoinKeys(m.From.Key, "master"), `failed to lookup master %q: the host does not have this link; "master" must be the name of an existing link`, parent)
	}
	const ports = "portMappings"
	given := conf.RuntimeConfig.PortMappings != nil
	for _, enabled := range ownCapabilities(m.Plugin) { // an unused capability is noted already
		given = given || enabled
	}
	if read, all := c.consumed(m.Plugin); !given && !all && m.builtIn.Chained && slices.Contains(read, ports) {
		c.addAs(Risk, m.From.File, spec.JoinKeys(m.From.Key, "type"), `%s publishes no port without "capabilities": {%q: true}`, m.Type, ports)
	}
	for _, r := range m.resources.Ranges {
		if r.Subnet.Bits() == 0 {
			c.addRangeProblem(Fault, m, r, fmt.Sprintf(`%s is every address: "subnet" must be that of the containers, as %s`, r.Subnet, exampleOf(r.Subnet)))
		}
	}
}

// exampleOf returns an example subnet of the family of another one.
func exampleOf(p netip.Prefix) string {
	if p.Addr().Is4() {
		return "10.1.0.0/24"
	}
	return "fd00:1::/64"
}

// attached notes an attachment whose addresses are in no range of its network, which may have been
// changed since. Addresses of other IPAM plugins, and ranges of the runtime, are not in the
// configuration.
func (c *checker) attached(n *network) {
	var ranges []spec.Range
	var delegate *member
	for _, m := range n.members {
		if m.Capabilities["ipRanges"] || m.IPAM != "" && len(m.resources.Ranges) == 0 {
			return
		}
		for _, r := range m.resources.Ranges {
			if r.First == r.Last { // an address of static; the runtime may ask for others too
				return
			}
			delegate, ranges = m, append(ranges, r)
		}
	}
	if delegate == nil {
		return
	}
	for _, a := range c.Attached {
		if a.Network != n.list.Name {
			continue
		}
		for _, p := range a.Addresses {
			if !slices.ContainsFunc(ranges, func(r spec.Range) bool { return r.Subnet.Contains(p.Addr()) }) {
				c.addRangeProblem(Risk, delegate, ranges[0], fmt.Sprintf("%s: %s of container %s has %s of an earlier configuration, until it is deleted and added again",
					ranges[0].Subnet, a.IfName, a.ContainerID, p))
				return
			}
		}
	}
}

// gateways notes gateways of ranges and routes that are in no network of the container. A gateway
// of static may be any address, as its documentation says.
func (c *checker) gateways(m *member) {
	if len(m.resources.Ranges) == 0 {
		return
	}
	var networks []netip.Prefix
	for _, r := range m.resources.Ranges {
		networks = append(networks, r.Subnet)
	}
	for _, g := range spec.StrayGateways(m.Conf(), networks) {
		if !strings.HasPrefix(g.Key, "ipam.addresses") {
			c.addError(m.From.File, g.Err(), "", m.From.Key)
		}
	}
}
