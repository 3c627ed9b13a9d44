package cniexec

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"cnibox/applets/cniexec/sandbox"
	"cnibox/internal/memory"
	"cnibox/internal/nsid"
	"cnibox/internal/tty"
	"cnibox/spec"
)

// show prints all that is known of a container's attachments, or of a network.
func (c *call) show(_ context.Context, operands []string) (exit int, err error) {
	if len(operands) != 1 {
		return 0, usage("show: it takes one operand: a container's ID or name, or a network")
	}
	defer memory.CollectLess()()
	v, err := c.look()
	if err != nil {
		return 0, err
	}
	networks := c.knownNetworks(v)
	for _, n := range networks {
		if n.name == operands[0] {
			return c.showNetwork(v, n)
		}
	}
	found, err := v.find(operands[0])
	if err != nil {
		return 0, err
	}
	if c.output == outputJSON {
		return c.writeJSON(v.doc(found))
	}
	var texts []string
	for _, a := range found {
		texts = append(texts, c.fields(v.describe(a)))
	}
	return c.write(strings.Join(texts, "\n"))
}

// leastPrefix is how many characters of an ID are enough, if no other ID begins with them.
const leastPrefix = 4

// find returns the attachments of one container: by its ID, its name, the recorded path of its
// namespace, the beginning of its ID, or another path or the name of its namespace.
func (v *inventory) find(name string) (found []*entry, err error) {
	exact := func(a *entry) bool { return a.ContainerID == name || a.name() == name || a.NetNSPath() == name }
	begins := func(a *entry) bool { return len(name) >= leastPrefix && strings.HasPrefix(a.ContainerID, name) }
	var netns nsid.ID // zero: there is none of that name
	if path, err := sandbox.NetNSPath(name); err == nil && name != "" {
		netns, _ = nsid.At(path)
	}
	in := func(a *entry) bool { return netns != nsid.ID{} && a.in(netns) }
	var ids []string
	for _, is := range []func(*entry) bool{exact, begins, in} {
		for _, a := range v.entries {
			if !is(a) {
				continue
			}
			found = append(found, a)
			if !slices.Contains(ids, a.ContainerID) {
				ids = append(ids, a.ContainerID)
			}
		}
		if len(found) > 0 {
			break
		}
	}
	switch {
	case len(ids) == 0:
		return nil, spec.Errorf(spec.CodeUnknown, "%q is neither a network nor a container with an attachment (`cni-exec ls` lists them)", name)
	case len(ids) > 1:
		return nil, spec.Errorf(spec.CodeUnknown, "%q is more than one container: %s", name, strings.Join(ids, ", "))
	}
	return found, nil
}

// A field is what show prints of one thing: its values, one below the other, the first of which has
// the name. Without values there is none.
type field struct {
	name   string
	values []string
}

// one is a field of one value, or of none if that is empty.
func one(name, value string) field {
	if value == "" {
		return field{name, nil}
	}
	return field{name, []string{value}}
}

// fields formats fields, their names in a column.
func (c *call) fields(all []field) string {
	s := c.screen()
	s.Width = 0 // nothing is cut
	var rows [][]string
	for _, f := range all {
		name := f.name
		for _, value := range f.values {
			rows = append(rows, []string{name, value})
			name = ""
		}
	}
	return s.Table(make([]tty.Column, 2), rows)
}

// describe is an attachment for people.
func (v *inventory) describe(a *entry) []field {
	var addresses, routes []string
	result := a.wholeResult()
	for _, ip := range result.Addresses(a.IfName, nil) {
		text := ip.Address.String()
		if ip.Gateway.IsValid() {
			text += ", gateway " + ip.Gateway.String()
		}
		addresses = append(addresses, text)
	}
	for _, r := range result.Routes {
		text := r.Dst.String()
		if r.GW.IsValid() {
			text += " via " + r.GW.String()
		}
		routes = append(routes, text)
	}
	network := a.NetworkName
	if types := a.conf.types(); len(types) > 0 {
		network += " (" + strings.Join(types, ", ") + ")"
	}
	name := a.name()
	if name == a.ContainerID {
		name = ""
	}
	iface := a.IfName
	if a.mac() != "" {
		iface += ", MAC " + a.mac()
	}
	link := a.hostLink
	if bridge := a.conf.bridge(); link != "" && bridge != "" {
		link += " on bridge " + bridge
	}
	since := ""
	if age := v.ageText(a); age != "" {
		since = a.since.Format(time.RFC3339) + ", " + age + " ago"
	}
	return []field{
		one("container", a.ContainerID),
		one("name", name),
		one("runtime", a.runtime()),
		one("namespace", a.NetNSPath()),
		one("network", network),
		one("interface", iface),
		{"addresses", addresses},
		{"routes", routes},
		{"nameservers", result.DNS.Nameservers},
		one("host side", link),
		{"ports", each(a.ports, func(p publishedPort) string { return fmt.Sprintf("%s -> %d", p.host(), p.ContainerPort) })},
		one("since", since),
		{"state", slices.DeleteFunc([]string{a.state, a.why}, func(s string) bool { return s == "" })},
		one("cache", a.File()),
	}
}

// showNetwork prints a network: its ranges and its attachments.
func (c *call) showNetwork(v *inventory, n *network) (exit int, err error) {
	pools, err := v.pools(n)
	if err != nil {
		c.warn("leases of network %s: %v", n.name, err)
	}
	if c.output == outputJSON {
		return c.writeJSON(struct {
			Network     networkDoc      `json:"network"`
			Attachments []attachmentDoc `json:"attachments"`
		}{n.doc(pools), each(n.attached, v.attachment)})
	}
	file := n.file
	switch {
	case file == "" && len(n.attached) > 0 && n.name != defaultNetwork:
		file = "in no file of " + c.confDir + "; that of the add of " + n.attached[0].name()
	case file == "":
		file = "built in"
	}
	all := []field{
		one("network", n.name),
		one("configuration", file),
		one("version", n.conf.CNIVersion),
		one("plugins", strings.Join(n.conf.types(), ", ")),
		one("bridge", n.conf.bridge()),
		one("leases", n.conf.leases(v.stateDir, n.name)),
	}
	for _, p := range pools {
		var values []string
		for _, r := range p.set {
			values = append(values, fmt.Sprintf("%s: %s to %s, gateway %s", r.Subnet, r.Start, r.End, r.Gateway))
		}
		if err == nil {
			leased := fmt.Sprintf("%d used, %s free", p.used, count(p.free))
			if v.staleKnown() {
				leased += fmt.Sprintf(", %d stale", len(p.stale))
			}
			values = append(values, leased)
		}
		if len(p.stale) > 0 {
			values = append(values, "stale: "+several(each(p.stale, netip.Addr.String)))
		}
		all = append(all, field{"range set", values})
	}
	attached := []string{fmt.Sprint(len(n.attached))}
	if gone := n.gone(); gone > 0 {
		attached[0] += fmt.Sprintf(", %d gone or interrupted", gone)
	}
	for _, a := range n.attached {
		words := []string{a.name(), a.IfName, joined(a.addresses(), bare)}
		if a.state != stateAlive {
			words = append(words, a.stateText())
		}
		attached = append(attached, strings.Join(slices.DeleteFunc(words, func(s string) bool { return s == "" }), " "))
	}
	return c.write(c.fields(append(all, field{"attached", attached})))
}
