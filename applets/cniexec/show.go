package cniexec

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/applets/cniexec/defaultnet"
	"github.com/cnibox/cnibox/applets/cniexec/inventory"
	"github.com/cnibox/cnibox/applets/cniexec/sandbox"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/memory"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/tty"
	"github.com/cnibox/cnibox/spec"
)

func showVerb() *verb {
	return &verb{name: "show", group: "Look", operands: "ID|NETWORK|ADDRESS|PROTO/PORT|LINK|NETNS|MAC", summary: "print all about a container, network, address or port", new: func(c *call) action { return &showCall{call: c} },
		text: `ID may be shortened to 4 characters, or be a name or a namespace from ls.
Plugins say what they hold for it: ports, limits, settings, rules. Of a network
it shows the ranges, with how many addresses are used, free, and stale: leased
to what has no live attachment in the cache. Of anything else it names the
owner. The exit code is 1 if there is nothing of the name, or no owner.`,
		examples: []example{
			{"cni-exec show blue", "the attachments of /run/netns/blue"},
			{"cni-exec show tcp/8080", "the container that a host port leads to"},
		},
	}
}

// A showCall is one call of show.
type showCall struct {
	*call
}

func (c *showCall) flags(f *flagSet) {
	f.outputs("`json` print JSON")
}

// do prints everything about a container's attachments, or about a network.
func (c *showCall) do(ctx context.Context, operands []string) (exit int, err error) {
	if len(operands) != 1 {
		return 0, usage("show: it takes one operand: a container, a network, an address, PROTO/PORT, a link, a namespace or a MAC address")
	}
	defer memory.CollectLess()()
	v, err := c.readInventory()
	if err != nil {
		return 0, err
	}
	networks := c.knownNetworks(v)
	network, found, err := v.ByName(operands[0], networks)
	var several *inventory.SeveralError
	switch {
	case network != nil:
		return c.showNetwork(ctx, v, network)
	case errors.As(err, &several) && !isNetNS(operands[0]): // a namespace may be that of several containers
		return 0, err
	case err != nil:
		return c.showOwner(ctx, v, networks, operands[0])
	}
	v.ReadHolds(ctx, found)
	var texts []string
	for _, a := range found {
		if a.HoldsErr != nil {
			c.warn("what plugins hold of %s: %v", a.Title(), a.HoldsErr)
		}
		texts = append(texts, c.fields(append(fieldsOf(v, a), field{"holds", holdTexts(a)})))
	}
	if c.output == outputJSON {
		return c.writeJSON(docOf(v, found))
	}
	return c.write(strings.Join(texts, "\n"))
}

// isNetNS reports whether a text is the name or the path of a network namespace.
func isNetNS(text string) bool {
	path, err := sandbox.NetNSPath(text)
	if err == nil {
		_, err = netns.IDAt(path)
	}
	return err == nil
}

// A shownNetworkDoc is the document of show of a network.
type shownNetworkDoc struct {
	Networks    []networkDoc    `json:"networks"` // one
	Attachments []attachmentDoc `json:"attachments"`
}

// A field is one fact that show prints: its values on lines of their own, the name before the
// first. A field without values is not printed.
type field struct {
	name   string
	values []string
}

// single returns a field with one value, or with none if that is empty.
func single(name, value string) field {
	if value == "" {
		return field{name, nil}
	}
	return field{name, []string{value}}
}

// fields formats fields, their names in a column.
func (c *call) fields(all []field) string {
	s := c.screen()
	s.Width = 0 // nothing is shortened
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

// fieldsOf returns the fields of an attachment.
func fieldsOf(v *inventory.Inventory, a *inventory.Entry) []field {
	var addresses, routes []string
	result := a.WholeResult()
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
	if types := a.Conf.Types(); len(types) > 0 {
		network += " (" + strings.Join(types, ", ") + ")"
	}
	name := a.Name()
	if name == a.ContainerID {
		name = ""
	}
	iface := a.IfName
	if a.MAC() != "" {
		iface += ", MAC " + a.MAC()
	}
	since := ""
	if age := v.AgeText(a); age != "" {
		since = a.Since.Format(time.RFC3339) + ", " + age + " ago"
	}
	return []field{
		single("container", a.ContainerID),
		single("name", name),
		single("runtime", a.Runtime()),
		single("namespace", a.NetNSPath()),
		single("network", network),
		single("interface", iface),
		{"addresses", addresses},
		{"routes", routes},
		{"nameservers", result.DNS.Nameservers},
		single("host side", hostSide(v, a)),
		{"ports", each(a.Ports, func(p spec.Port) string { return fmt.Sprintf("%s -> %d", p.Host(), p.ContainerPort) })},
		single("since", since),
		{"state", slices.DeleteFunc([]string{a.State, a.Why}, func(s string) bool { return s == "" })},
		single("cache", a.File()),
	}
}

// hostSide describes what the interface is connected to on the host.
func hostSide(v *inventory.Inventory, a *inventory.Entry) string {
	on := a.HeldLink()
	if a.HostLink != "" {
		on = onLink(v, a)
	}
	if on == "" {
		return a.HostLink
	}
	if v.Links != nil && v.Links.ByName[on] != nil {
		on = linkText(v.Links.ByName[on])
	}
	return strings.TrimSpace(a.HostLink + " on " + on)
}

// holdTexts describes what plugins hold for an attachment, each with its plugin. Links are in the
// field host side.
func holdTexts(a *inventory.Entry) (texts []string) {
	for _, h := range a.Holds {
		if h.Kind != spec.KindHostLink {
			texts = append(texts, h.Plugin+": "+h.Text)
		}
	}
	return texts
}

// showNetwork prints a network: its ranges and its attachments.
func (c *call) showNetwork(ctx context.Context, v *inventory.Inventory, n *inventory.Network) (exit int, err error) {
	pools, err := v.Pools(n)
	if err != nil {
		c.warn("leases of network %s: %v", n.Name, err)
	}
	if c.output == outputJSON {
		v.ReadHolds(ctx, n.Attached)
		return c.writeJSON(shownNetworkDoc{[]networkDoc{networkOf(v, n, pools)}, attachmentDocs(v, n.Attached)})
	}
	file := n.File
	switch {
	case file == "" && len(n.Attached) > 0 && n.Name != defaultnet.Name:
		file = "in no file of " + c.confDir + "; that of the add of " + n.Attached[0].Name()
	case file == "":
		file = "built in"
	}
	all := []field{
		single("network", n.Name),
		single("configuration", file),
		single("version", n.Conf.CNIVersion),
		single("plugins", strings.Join(n.Conf.Types(), ", ")),
		single("bridge", v.Bridge(n.Conf)),
		single("leases", n.Conf.Leases()),
	}
	for _, p := range pools {
		var values []string
		for _, r := range p.Set {
			values = append(values, fmt.Sprintf("%s: %s to %s, gateway %s", r.Subnet, r.Start, r.End, r.Gateway))
		}
		if err == nil {
			leased := fmt.Sprintf("%d used, %s free", p.Used, count(p.Free))
			if v.StaleKnown() {
				leased += fmt.Sprintf(", %d stale", len(p.Stale))
			}
			values = append(values, leased)
		}
		if len(p.Stale) > 0 {
			values = append(values, "stale: "+tty.Several(each(p.Stale, netip.Addr.String)))
		}
		all = append(all, field{"range set", values})
	}
	attached := []string{fmt.Sprint(len(n.Attached))}
	if gone := n.Gone(); gone > 0 {
		attached[0] += fmt.Sprintf(", %d gone or interrupted", gone)
	}
	for _, a := range n.Attached {
		words := []string{a.Name(), a.IfName, cell(a.Addresses(), bare)}
		if a.State != chain.StateAlive {
			words = append(words, a.StateText())
		}
		attached = append(attached, strings.Join(slices.DeleteFunc(words, func(s string) bool { return s == "" }), " "))
	}
	return c.write(c.fields(append(all, field{"attached", attached})))
}
