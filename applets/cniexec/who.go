package cniexec

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/applets/cniexec/hint"
	"github.com/cnibox/cnibox/applets/cniexec/inventory"
	"github.com/cnibox/cnibox/applets/cniexec/sandbox"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/memory"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/state"
	"github.com/cnibox/cnibox/internal/tty"
	"github.com/cnibox/cnibox/ipam"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

func whoVerb() *verb {
	return &verb{name: "who", instead: "show", new: func(c *call) action { return &whoCall{call: c} }}
}

// A whoCall is one call of who.
type whoCall struct {
	*call
}

func (c *whoCall) flags(f *flagSet) {
	f.outputs("`json` print JSON")
}

// A query is a question about an owner: its kind, and what that needs. The inventory, the elements of the
// rule set and the leases answer it.
type query struct {
	*call
	*inventory.Inventory
	text  string
	kind  string
	addr  netip.Addr
	mac   net.HardwareAddr
	proto string
	port  uint16
	id    netns.ID // of a namespace that exists
	path  string   // of a namespace

	networks []*inventory.Network

	ctx    context.Context // of the call, for plugins
	owners []*inventory.Entry
	others []string // text about owners that are not attachments of the cache
}

// The kinds of questions.
const (
	kindAddress = "address"
	kindMAC     = "mac"
	kindPort    = "port"
	kindNetNS   = "netns"
	kindLink    = "link"
)

// whoDoc is the answer as JSON.
type whoDoc struct {
	Query  string     `json:"query"`
	Kind   string     `json:"kind"`
	Owners []ownerDoc `json:"owners"`
	Others []string   `json:"others"`
}

// An ownerDoc is what documents have of each attachment, from its entry.
type ownerDoc struct {
	attachmentName
	Name      string         `json:"name"`
	Runtime   string         `json:"runtime"`
	NetNS     string         `json:"netns"`
	Addresses []netip.Prefix `json:"addresses"`
}

func ownerOf(a *inventory.Entry) ownerDoc {
	return ownerDoc{nameOf(a.Attachment()), a.Name(), a.Runtime(), a.NetNSPath(), notNull(a.Addresses())}
}

// do names the owner of an address, a host port, a link, a namespace or a MAC address.
func (c *whoCall) do(ctx context.Context, operands []string) (exit int, err error) {
	if len(operands) != 1 {
		return 0, usage("who: it takes one operand: an address, PROTO/PORT, a link, a namespace or a MAC address")
	}
	defer memory.CollectLess()()
	v, err := c.readInventory()
	if err != nil {
		return 0, err
	}
	return c.showOwner(ctx, v, c.knownNetworks(v), operands[0])
}

// showOwner prints the owners of what the text names, which may be the name of nothing.
func (c *call) showOwner(ctx context.Context, v *inventory.Inventory, networks []*inventory.Network, text string) (exit int, err error) {
	q := &query{ctx: ctx, call: c, Inventory: v, networks: networks, text: text}
	if err := q.read(); err != nil {
		return 0, err
	}
	switch q.kind {
	case kindAddress:
		err = q.askAddress()
	case kindMAC:
		q.askMAC()
	case kindPort:
		q.askPort()
	case kindNetNS:
		q.askNetNS()
	case kindLink:
		err = q.askLink()
	}
	if err != nil {
		return 0, err
	}
	switch {
	case !q.found():
		what := map[string]string{kindMAC: "MAC address", kindNetNS: "namespace"}
		return 0, spec.Errorf(spec.CodeUnknown, "no attachment owns the %s %s", cmp.Or(what[q.kind], q.kind), q.text)
	case c.output == outputJSON:
		return c.writeJSON(q.doc())
	}
	return c.write(q.answer())
}

// read determines the kind of the operand. A name is that of a link, or of a named namespace.
func (q *query) read() (err error) {
	text := q.text
	if a, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		q.kind, q.addr = kindAddress, a.Unmap().WithZone("")
		return nil
	}
	if p, err := netip.ParsePrefix(text); err == nil {
		q.kind, q.addr = kindAddress, p.Addr().Unmap()
		return nil
	}
	if mac, err := net.ParseMAC(text); err == nil && len(mac) == 6 {
		q.kind, q.mac = kindMAC, mac
		return nil
	}
	if port, protocol, ok := cutProtocol(text); ok && protocol != "" && port != "" {
		q.kind, q.proto = kindPort, protocol
		if q.port, err = parsePort(port); err != nil {
			return usage("%q: %w", text, errPorts)
		}
		return nil
	}
	if !strings.Contains(text, "/") {
		q.kind, q.path = kindLink, filepath.Join(sandbox.NetNSDir, text)
		if q.id, err = netns.IDAt(q.path); err != nil {
			return nil
		}
		if q.hostLink(text) == nil { // a link takes precedence
			q.kind = kindNetNS
		}
		return nil
	}
	q.kind = kindNetNS
	if q.path, err = filepath.Abs(text); err != nil {
		return err
	}
	q.id, err = netns.IDAt(q.path)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		err = nil // an entry may have the path
	}
	return err
}

// hostLink returns a link of the host; nil: there is none, or links could not be read.
func (q *query) hostLink(name string) *rtnl.Link {
	if q.Links == nil {
		return nil
	}
	return q.Links.ByName[name]
}

// found reports whether the question has an answer.
func (q *query) found() bool { return len(q.owners)+len(q.others) > 0 }

// search adds the attachments that match, and reports whether the question has an answer.
func (q *query) search(matches func(*inventory.Entry) bool) bool {
	for _, a := range q.Entries {
		if matches(a) && !slices.Contains(q.owners, a) {
			q.owners = append(q.owners, a)
		}
	}
	return q.found()
}

// searchHolds adds the attachments that may hold something, and do as their plugins report it.
func (q *query) searchHolds(may []*inventory.Entry, matches func(data any) bool) {
	q.ReadHolds(q.ctx, may)
	q.search(func(a *inventory.Entry) bool {
		return slices.ContainsFunc(a.Holds, func(h chain.Held) bool { return matches(h.Data) })
	})
}

// lookup adds an attachment, or a text if the cache does not have it.
func (q *query) lookup(a spec.Attachment, how string) {
	matches := func(e *inventory.Entry) bool { return e.Attachment() == a }
	if q.search(matches); slices.ContainsFunc(q.owners, matches) {
		return
	}
	text := fmt.Sprintf("%s %s", how, q.Inventory.Cache.Title(a))
	if !slices.ContainsFunc(q.Broken, func(b chain.Broken) bool { return b.Of(a) }) {
		text += ", which is not in the cache"
	}
	q.others = append(q.others, text)
}

// askAddress searches the leases, whose file names are the addresses, then the addresses of the
// host, then the entries.
func (q *query) askAddress() error {
	for _, dir := range q.leaseDirs() {
		networks, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			q.warn("not searched: %v", err)
		}
		for _, n := range networks {
			lease, err := ipam.ReadLease(dir, n.Name(), q.addr)
			if err != nil || !n.IsDir() {
				continue
			}
			if lease.ContainerID == "" {
				q.others = append(q.others, fmt.Sprintf("leased on network %s: no owner can be read in the lease", n.Name()))
				continue
			}
			if lease.IfName == "" {
				q.others = append(q.others, fmt.Sprintf("leased on network %s to %s", n.Name(), lease))
				continue
			}
			a := spec.Attachment{Network: n.Name(), ContainerID: lease.ContainerID, IfName: lease.IfName}
			q.lookup(a, "leased to")
		}
	}
	if len(q.owners) > 0 {
		return nil
	}
	if err := q.askHostAddress(); err != nil || len(q.others) > 0 {
		return err
	}
	q.search(func(a *inventory.Entry) bool {
		return slices.ContainsFunc(a.Parsed.IPs, func(ip spec.IP) bool { return ip.Address.Addr() == q.addr })
	})
	return nil
}

// leaseDirs returns the directories of leases: the usual one, that of the default network, and
// those of the networks.
func (q *query) leaseDirs() []string {
	dirs := []string{state.Dir(q.stateDir, state.Leases), filepath.Join(state.Run, filepath.Base(state.Leases))}
	dirs = append(dirs, filepath.Join(q.Inventory.Cache.Dir, "networks"))
	for _, n := range q.networks {
		if dir := n.Conf.Leases(); dir != "" {
			dirs = append(dirs, dir)
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// askHostAddress searches the addresses of the host.
func (q *query) askHostAddress() error {
	conn, err := rtnl.Dial(netns.Host())
	if err != nil {
		return err
	}
	defer conn.Close()
	all, err := conn.AllAddrs()
	if err != nil {
		return err
	}
	for index, addrs := range all {
		if slices.ContainsFunc(addrs, func(a rtnl.Addr) bool { return a.Prefix.Addr() == q.addr }) {
			if l, err := conn.LinkAt(index); err == nil {
				q.others = append(q.others, "the host's, on "+linkText(l))
			}
		}
	}
	slices.Sort(q.others)
	return nil
}

// linkText names a link with its kind.
func linkText(l *rtnl.Link) string {
	if l.Kind == "" {
		return l.Name
	}
	return l.Kind + " " + l.Name
}

// askLink looks at the alias of a link of the host, then searches attachments with its name, and
// plugins.
func (q *query) askLink() error {
	l := q.hostLink(q.text)
	if l != nil {
		if q.askLabel(l); q.found() {
			return nil
		}
		if l.Kind == "bridge" {
			q.askBridge(l)
			return nil
		}
	}
	found := q.search(func(a *inventory.Entry) bool {
		return slices.ContainsFunc(a.Parsed.Interfaces, func(i spec.Interface) bool {
			return i.Name == q.text && i.Sandbox == "" && i.Name != q.Bridge(a.Conf)
		})
	})
	if !found {
		q.searchHolds(q.Entries, func(data any) bool {
			link, ok := data.(spec.HostLink)
			return ok && (link.Name == q.text || link.Parent == q.text)
		})
	}
	if q.found() || l != nil {
		return nil
	}
	q.askNetNS() // a namespace that is gone but has an entry
	if q.found() {
		q.kind = kindNetNS
		return nil
	}
	return &hint.Error{Err: spec.Errorf(spec.CodeUnknown, "there is no network, container, link or namespace %q", q.text), Hint: adviceOf(q.text)}
}

// adviceOf says what to write for a port without a protocol, or an address with a port; empty: it is
// neither.
func adviceOf(text string) string {
	if _, err := parsePort(text); err == nil {
		return "`cni-exec show tcp/" + text + "` is about the port"
	}
	if at, err := netip.ParseAddrPort(text); err == nil {
		return fmt.Sprintf("`cni-exec show %s` is about the address, `cni-exec show tcp/%d` about the port", at.Addr(), at.Port())
	}
	return "`cni-exec ls` lists containers, `cni-exec ls --networks` networks"
}

// askLabel adds the attachment in a link's label. Names that are too long for a label are known by their key.
func (q *query) askLabel(l *rtnl.Link) {
	if a, ok := spec.LabelNames(l.Alias); ok {
		q.lookup(a, "labelled as of")
	} else if key := spec.LabelKey(l.Alias); key != "" {
		q.search(func(a *inventory.Entry) bool { return a.Key == key })
	}
}

// askBridge adds the networks of a bridge: those that have it, and those in the labels of its ports.
func (q *query) askBridge(bridge *rtnl.Link) {
	var names []string
	for _, n := range q.networks {
		if q.Bridge(n.Conf) == q.text {
			names = append(names, n.Name)
		}
	}
	ports := 0
	for i := range q.Links.All {
		if l := &q.Links.All[i]; l.Master == bridge.Index {
			ports++
			if a, ok := spec.LabelNames(l.Alias); ok {
				names = append(names, a.Network)
			}
		}
	}
	if len(names) > 0 {
		slices.Sort(names)
		q.others = append(q.others, fmt.Sprintf("the bridge of %s, with %s", strings.Join(slices.Compact(names), ", "), tty.Plural(ports, "port")))
	}
}

// askMAC searches attachments with the address, then links of the host, then elements of the rule set.
func (q *query) askMAC() {
	found := q.search(func(a *inventory.Entry) bool {
		return slices.ContainsFunc(a.Parsed.Interfaces, func(i spec.Interface) bool {
			return strings.EqualFold(i.MAC, q.mac.String()) && i.Name != q.Bridge(a.Conf)
		})
	})
	if found || q.Links == nil {
		return
	}
	for i := range q.Links.All {
		l := &q.Links.All[i]
		if !bytes.Equal(l.MAC, q.mac) {
			continue
		}
		had := len(q.owners) + len(q.others)
		if q.askLabel(l); len(q.owners)+len(q.others) == had {
			q.others = append(q.others, "the host's, of "+linkText(l))
		}
	}
	if !q.found() {
		q.askElements(nft.KindMACGuard, func(e *nft.Element) (holds string) {
			if !bytes.Equal(e.MAC(), q.mac) {
				return ""
			}
			return "the one that " + e.Link() + " may send from, of"
		})
	}
}

// askElements searches owners of elements of the rule set. holds describes what a matching element
// has; empty: it does not match.
func (q *query) askElements(kind nft.Kind, holds func(*nft.Element) string) {
	held, err := nft.Open(netns.Host()).Elements(kind)
	if err != nil {
		q.warn("not searched: %v", err)
	}
	for _, e := range held {
		text := holds(&e)
		if text == "" {
			continue
		}
		if o := e.Owner(); o.Key() == e.OwnerKey() {
			q.lookup(o, text)
		} else {
			q.search(func(a *inventory.Entry) bool { return a.Key == e.OwnerKey() })
		}
	}
}

// askPort searches the elements of host ports, then attachments with the port, such as those of other
// plugins, then what plugins have published.
func (q *query) askPort() {
	q.askElements(nft.KindPortMap, func(e *nft.Element) (holds string) {
		if proto, port := e.Port(); port != q.port || proto != q.proto {
			return ""
		}
		return "leads to " + e.Target().String() + " of"
	})
	matches := func(p spec.Port) bool { return p.HostPort == q.port && p.Protocol == q.proto }
	if !q.found() && !q.search(func(a *inventory.Entry) bool { return slices.ContainsFunc(a.Ports, matches) }) {
		q.searchHolds(inventory.Publishing(q.Entries), func(data any) bool {
			p, ok := data.(spec.Port)
			return ok && matches(p)
		})
	}
}

// askNetNS searches attachments with the path or the ID of the namespace; other runtimes may use
// another path to it.
func (q *query) askNetNS() {
	q.search(func(a *inventory.Entry) bool {
		if (q.id == netns.ID{}) {
			return strings.TrimPrefix(a.NetNSPath(), "/var") == strings.TrimPrefix(q.path, "/var") // /var/run is /run
		}
		return a.IsIn(q.id)
	})
}

// answer returns a line for each owner.
func (q *query) answer() string {
	s := q.screen()
	s.Width = 0
	var rows [][]string
	for _, a := range q.owners {
		rows = append(rows, []string{a.Name(), a.IfName + " on network " + a.NetworkName,
			cell(a.Addresses(), bare), "container " + a.ContainerID, a.NetNSPath()})
	}
	text := s.Table(make([]tty.Column, 5), rows)
	for _, other := range q.others {
		text += spec.Printable(other) + "\n"
	}
	return text
}

// doc returns the answer as JSON.
func (q *query) doc() whoDoc {
	return whoDoc{q.text, q.kind, each(q.owners, ownerOf), notNull(q.others)}
}
