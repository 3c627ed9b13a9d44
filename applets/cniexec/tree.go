package cniexec

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cnibox/cnibox/applets/cniexec/inventory"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/memory"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/tty"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

func treeVerb() *verb {
	return &verb{name: "tree", group: "Look", operands: "", summary: "draw the host's links and what is attached", new: func(c *call) action { return &treeCall{call: c} },
		text: `Uplinks, parents and bridges, with the host-side link, name, interface,
addresses and ports of each attachment, and its state if its namespace is gone.`,
		examples: []example{
			{"cni-exec tree", "as text"},
			{"cni-exec tree --dot | dot -Tpng >net.png", "as a picture"},
		},
	}
}

// A treeCall is one call of tree.
type treeCall struct {
	*call
	dot bool
}

func (c *treeCall) flags(f *flagSet) {
	f.BoolVar(&c.dot, "dot", false, "print a graph for dot(1)")
	f.outputs("`json` print JSON")
}

// A branch is a link of the host and what is attached to it, or the attachments without such a
// link.
type branch struct {
	link     *rtnl.Link // nil: missing
	rest     bool       // not a link: the attachments that are on none
	name     string
	uplink   bool // a default route leads to it
	addrs    []netip.Prefix
	networks []string // on the link
	ports    []string // links that belong to no attachment
	attached []*inventory.Entry
}

// do draws the links of the host and what is attached to them.
func (c *treeCall) do(ctx context.Context, operands []string) (exit int, err error) {
	if err := c.tooMany(operands, 0); err != nil {
		return 0, err
	}
	if c.dot && c.output != "" {
		return 0, usage("tree: --dot and --output cannot be combined")
	}
	defer memory.CollectLess()()
	v, err := c.readInventory()
	if err != nil {
		return 0, err
	}
	if v.Links == nil {
		return 0, v.Unread[0]
	}
	asked := v.Entries
	if c.output != outputJSON {
		asked = slices.DeleteFunc(slices.Clone(asked), func(a *inventory.Entry) bool {
			l := v.Link(a)
			return l != nil && l.Master != 0 && !a.Conf.Publishes // it is drawn below its master
		})
	}
	v.ReadHolds(ctx, asked)
	routes, err := readHostRoutes()
	if err != nil {
		return 0, err
	}
	all := branches(v, c.knownNetworks(v), routes)
	if c.output == outputJSON {
		return c.writeJSON(treeOf(v, all))
	}
	return c.drawTree(all)
}

type (
	// A treeDoc is the document of tree.
	treeDoc struct {
		Links []treeLinkDoc   `json:"links"`
		Other []attachmentDoc `json:"other"` // those on no link of the host
	}

	treeLinkDoc struct {
		Name        string          `json:"name"`
		Kind        string          `json:"kind"`
		Exists      bool            `json:"exists"`
		Up          bool            `json:"up"`
		Uplink      bool            `json:"uplink"`
		Addresses   []netip.Prefix  `json:"addresses"`
		Networks    []string        `json:"networks"`
		Ports       []string        `json:"ports"`
		Attachments []attachmentDoc `json:"attachments"`
	}
)

// treeOf returns the tree as JSON.
func treeOf(v *inventory.Inventory, all []*branch) treeDoc {
	doc := treeDoc{[]treeLinkDoc{}, []attachmentDoc{}}
	for _, b := range all {
		attached := attachmentDocs(v, b.attached)
		if b.rest {
			doc.Other = append(doc.Other, attached...)
			continue
		}
		l := treeLinkDoc{Name: b.name, Uplink: b.uplink, Addresses: notNull(b.addrs), Networks: notNull(b.networks), Ports: notNull(b.ports), Attachments: attached}
		if b.link != nil {
			l.Kind, l.Exists, l.Up = b.link.Kind, true, b.link.Up
		}
		doc.Links = append(doc.Links, l)
	}
	return doc
}

// drawTree writes the branches, as text or as a graph.
func (c *treeCall) drawTree(branches []*branch) (exit int, err error) {
	if c.dot {
		return c.write(dot(branches))
	}
	var b strings.Builder
	s := c.screen()
	for _, br := range branches {
		br.draw(&b, s)
	}
	return c.write(b.String())
}

// branches returns the uplinks, the parents of virtual links, the bridges, what is routed, and the
// rest, in this order.
func branches(v *inventory.Inventory, networks []*inventory.Network, routes hostRoutes) []*branch {
	var all []*branch
	at := func(name string) *branch {
		for _, b := range all {
			if b.name == name {
				return b
			}
		}
		b := &branch{name: name, link: v.Links.ByName[name]}
		all = append(all, b)
		return b
	}
	for _, index := range routes.uplinks {
		if l := v.Links.ByIndex[index]; l != nil {
			at(l.Name).uplink = true
		}
	}
	for _, n := range networks {
		switch bridge, parent := v.Bridge(n.Conf), n.Conf.Parent; {
		case bridge != "" && (len(n.Attached) > 0 || v.Links.ByName[bridge] != nil):
			b := at(bridge)
			b.networks = append(b.networks, n.Name)
		case parent != "" && v.Links.ByName[parent] != nil:
			at(parent)
		}
	}
	routed, rest := &branch{name: "routed", rest: true}, &branch{name: "other", rest: true}
	for _, a := range v.Entries {
		switch on := onLink(v, a); {
		case on != "":
			b := at(on)
			b.attached = append(b.attached, a)
		case v.Link(a) != nil:
			routed.attached = append(routed.attached, a)
		default:
			rest.attached = append(rest.attached, a)
		}
	}
	addPorts(v, all)
	for _, b := range all {
		if b.link == nil {
			continue
		}
		for _, a := range routes.addrs[b.link.Index] {
			if !a.Prefix.Addr().IsLinkLocalUnicast() {
				b.addrs = append(b.addrs, a.Prefix)
			}
		}
	}
	for _, b := range []*branch{routed, rest} {
		if len(b.attached) > 0 {
			all = append(all, b)
		}
	}
	return all
}

// onLink returns the link of the host below which an attachment is drawn: the master of its
// host-side link, what plugins report, or the bridge of its network. Empty: none.
func onLink(v *inventory.Inventory, a *inventory.Entry) string {
	if l := v.Link(a); l != nil && v.Links.ByIndex[l.Master] != nil {
		return v.Links.ByIndex[l.Master].Name
	}
	return cmp.Or(a.HeldLink(), v.Bridge(a.Conf))
}

// addPorts adds the ports of bridges that belong to no attachment.
func addPorts(v *inventory.Inventory, all []*branch) {
	of := map[string]bool{}
	for _, a := range v.Entries {
		if l := v.Link(a); l != nil {
			of[l.Name] = true
		}
	}
	for _, b := range all {
		if b.link == nil {
			continue
		}
		for i := range v.Links.All {
			if l := &v.Links.All[i]; l.Master == b.link.Index && !of[l.Name] {
				b.ports = append(b.ports, l.Name)
			}
		}
		slices.Sort(b.ports)
	}
}

// words returns the kind, the addresses, and the networks.
func (b *branch) words() (words []string) {
	switch {
	case b.rest:
		return nil
	case b.link == nil:
		words = append(words, "(gone)")
	case b.link.Kind != "":
		words = append(words, b.link.Kind)
	}
	words = append(words, each(b.addrs, netip.Prefix.String)...)
	if b.link != nil && !b.link.Up {
		words = append(words, "down")
	}
	if b.uplink {
		words = append(words, "uplink")
	}
	return append(words, b.networks...)
}

// A hostRoutes has the links of the host's default routes, and the addresses of its links.
type hostRoutes struct {
	uplinks []uint32 // indexes
	addrs   map[uint32][]rtnl.Addr
}

// readHostRoutes asks the kernel.
func readHostRoutes() (h hostRoutes, err error) {
	conn, err := rtnl.Dial(netns.Host())
	if err != nil {
		return h, err
	}
	defer conn.Close()
	if h.uplinks, err = inventory.Uplinks(conn); err != nil {
		return h, err
	}
	h.addrs, err = conn.AllAddrs()
	return h, err
}

// draw writes a branch: its own line and one for each attachment.
func (b *branch) draw(w *strings.Builder, s tty.Screen) {
	w.WriteString(s.Cut(strings.TrimRight(b.name+"  "+strings.Join(b.words(), " "), " "), s.Width) + "\n")
	tick, last := "|- ", "`- "
	if s.UTF8 {
		tick, last = "├─ ", "└─ "
	}
	var rows [][]string
	for _, a := range b.attached {
		state := a.StateText()
		if a.State == chain.StateAlive {
			state = ""
		}
		link := a.HostLink
		if link == "" {
			link = a.Conf.InterfacePlugin().Type
		}
		rows = append(rows, []string{tick + link, a.Name(), a.IfName,
			strings.Join(each(a.Addresses(), bare), " "),
			cell(a.Ports, spec.Port.Short), state})
	}
	for _, port := range b.ports {
		rows = append(rows, []string{tick + port, "", "", "", "", ""})
	}
	if len(rows) == 0 {
		return
	}
	end := rows[len(rows)-1]
	end[0] = last + strings.TrimPrefix(end[0], tick)
	w.WriteString(s.Table([]tty.Column{{Min: 8}, {Min: 8}, {Min: 4}, {Min: 15}, {Min: 5}, {Min: 12, Early: true}}, rows))
}

// dot returns the tree as a graph for dot(1): the host, its links, and a node for each namespace.
func dot(branches []*branch) string {
	var w strings.Builder
	w.WriteString("graph cnibox {\n  rankdir=LR;\n  node [shape=box];\n")
	spaces := map[string]bool{}
	for _, b := range branches {
		from := "link " + b.name
		fmt.Fprintf(&w, "  %s [label=%s];\n  host -- %s;\n", quoted(from), quoted(b.name, b.words()...), quoted(from))
		for _, port := range b.ports {
			fmt.Fprintf(&w, "  %s -- %s;\n", quoted(from), quoted("link "+port))
		}
		for _, a := range b.attached {
			to := "netns " + a.NetNSPath()
			if a.NetNSPath() == "" {
				to = "container " + a.ContainerID
			}
			if !spaces[to] {
				spaces[to] = true
				fmt.Fprintf(&w, "  %s [label=%s, style=rounded];\n", quoted(to), quoted(a.Name()))
			}
			more := slices.Concat(each(a.Addresses(), bare), each(a.Ports, spec.Port.Short))
			colour := ""
			if a.State == chain.StateGone || a.State == chain.StateInterrupted {
				colour = ", color=red"
			}
			label := strings.TrimPrefix(a.HostLink+" - "+a.IfName, " - ")
			fmt.Fprintf(&w, "  %s -- %s [label=%s%s];\n", quoted(from), quoted(to), quoted(label, more...), colour)
		}
	}
	w.WriteString("}\n")
	return w.String()
}

// quoted returns a string in the language of dot(1), with a line for each of the texts.
func quoted(first string, lines ...string) string {
	text := spec.Printable(first)
	for _, line := range lines {
		text += "\n" + spec.Printable(line)
	}
	return strconv.Quote(text)
}
