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

	"cnibox/applets/cniexec/hint"
	"cnibox/applets/cniexec/inventory"
	"cnibox/applets/cniexec/sandbox"
	"cnibox/chain"
	"cnibox/internal/memory"
	"cnibox/internal/netns"
	"cnibox/internal/state"
	"cnibox/internal/tty"
	"cnibox/ipam"
	"cnibox/nft"
	"cnibox/rtnl"
	"cnibox/spec"
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

// A query is a question about an owner: its kind, and what that needs. If an index leads to the owner (the
// name of a lease, a link's alias, the owner of an element), the query uses it. Otherwise it
// decodes only the entries that have the text.
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

// An ownerDoc has an attachment's data from its entry: who does not test them.
type ownerDoc struct {
	Network     string         `json:"network"`
	ContainerID string         `json:"containerID"`
	IfName      string         `json:"ifName"`
	Name        string         `json:"name"`
	Runtime     string         `json:"runtime"`
	NetNS       string         `json:"netns"`
	Addresses   []netip.Prefix `json:"addresses"`
}

// do names the owner of an address, a host port, a link, a namespace or a MAC address.
func (c *whoCall) do(ctx context.Context, operands []string) (exit int, err error) {
	if len(operands) != 1 {
		return 0, usage("who: it takes one operand: an address, PROTO/PORT, a link, a namespace or a MAC address")
	}
	return c.showOwner(ctx, operands[0], false)
}

// showOwner prints the owners of what the text names, which may be the name of nothing. With listed an
// inventory was made before, and has named the broken entries.
func (c *call) showOwner(ctx context.Context, text string, listed bool) (exit int, err error) {
	if err := c.stateDirs(); err != nil {
		return 0, err
	}
	defer memory.CollectLess()()
	q := &query{ctx: ctx, call: c, Inventory: inventory.Empty(c.cache(), c.describer()), text: text}
	if err := q.read(); err != nil {
		return 0, err
	}
	ask := map[string]func() error{
		kindAddress: q.askAddress, kindMAC: q.askMAC, kindPort: q.askPort, kindNetNS: q.askNetNS, kindLink: q.askLink,
	}[q.kind]
	if err := ask(); err != nil {
		return 0, err
	}
	if listed {
		q.Broken = nil
	}
	q.complain(q.Inventory, "not searched")
	if c.output == outputJSON {
		exit, err = c.writeJSON(q.doc())
	} else {
		exit, err = c.write(q.answer())
	}
	if err == nil && len(q.owners)+len(q.others) == 0 {
		what := map[string]string{kindMAC: "MAC address", kindNetNS: "namespace"}
		return exitError, spec.Errorf(spec.CodeUnknown, "no attachment owns the %s %s", cmp.Or(what[q.kind], q.kind), q.text)
	}
	return exit, err
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
		if _, err := q.hostLink(text); err != nil { // a link takes precedence
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

// hostLink reads one link of the host.
func (q *query) hostLink(name string) (*rtnl.Link, error) {
	return inventory.AskHost(func(conn *rtnl.Conn) (*rtnl.Link, error) { return conn.Link(name) })
}

// own adds an owner, once.
func (q *query) own(e *chain.Entry) {
	a := e.Attachment()
	if !slices.ContainsFunc(q.owners, func(o *inventory.Entry) bool { return o.Attachment() == a }) {
		q.owners = append(q.owners, q.Inventory.Read(e))
	}
}

// lookup adds the entry of an attachment, or a text if there is none. If another runtime may be
// writing the entry, it searches, which reads the entry again.
func (q *query) lookup(a spec.Attachment, how string) error {
	e, err := q.Inventory.Cache.Lookup(a)
	switch {
	case err == nil:
		q.own(e)
	case errors.Is(err, os.ErrNotExist):
		matches := func(e *inventory.Entry) bool { return e.Attachment() == a }
		if err := q.search(matches, a.ContainerID); err != nil || slices.ContainsFunc(q.owners, matches) {
			return err
		}
		q.others = append(q.others, fmt.Sprintf("%s %s, which is not in the cache", how, q.Inventory.Cache.Title(a)))
	case errors.Is(err, os.ErrPermission):
		q.others = append(q.others, fmt.Sprintf("%s %s", how, q.Inventory.Cache.Title(a)))
		q.Unread = append(q.Unread, err)
	default:
		return err
	}
	return nil
}

// search adds the owners of matching entries, of those that contain one of the texts.
func (q *query) search(matches func(*inventory.Entry) bool, texts ...string) error {
	entries, broken, err := q.Inventory.Cache.Search(func(text []byte) bool {
		return len(texts) == 0 || slices.ContainsFunc(texts, func(s string) bool { return bytes.Contains(text, []byte(s)) })
	})
	if err != nil {
		return err
	}
	q.Broken = broken
	for _, e := range entries {
		if matches(q.Inventory.Read(e)) {
			q.own(e)
		}
	}
	return nil
}

// searchHolds adds the owners of what plugins hold, for the attachments that may hold it.
func (q *query) searchHolds(may func([]*inventory.Entry) []*inventory.Entry, matches func(data any) bool) error {
	entries, broken, err := q.Inventory.Cache.List()
	if err != nil {
		return err
	}
	q.Broken = broken
	var all []*inventory.Entry
	for _, e := range entries {
		all = append(all, q.Inventory.Read(e))
	}
	all = may(all)
	q.ReadHolds(q.ctx, all)
	for _, a := range all {
		if slices.ContainsFunc(a.Holds, func(h chain.Held) bool { return matches(h.Data) }) {
			q.own(a.Entry)
		}
	}
	return nil
}

// askAddress searches the leases, whose file names are the addresses, then the addresses of the
// host, then the entries.
func (q *query) askAddress() error {
	for _, dir := range q.leaseDirs() {
		networks, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			q.Unread = append(q.Unread, err)
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
			if err := q.lookup(a, "leased to"); err != nil {
				return err
			}
		}
	}
	if len(q.owners) > 0 {
		return nil
	}
	if err := q.askHostAddress(); err != nil || len(q.others) > 0 {
		return err
	}
	return q.search(func(a *inventory.Entry) bool {
		return slices.ContainsFunc(a.Parsed.IPs, func(ip spec.IP) bool { return ip.Address.Addr() == q.addr })
	}, q.addr.String()+"/")
}

// leaseDirs returns the directories of leases: the usual one, that of the default network, and
// those of the configured networks.
func (q *query) leaseDirs() []string {
	dirs := []string{state.Dir(q.stateDir, state.Leases), filepath.Join(state.Run, filepath.Base(state.Leases))}
	add := func(dir string) {
		if dir != "" && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	add(filepath.Join(q.Inventory.Cache.Dir, "networks"))
	lists, _ := chain.Lists(q.confDir)
	for _, l := range lists {
		if doc, err := l.Effective(); err == nil {
			add(q.Conf(doc).Leases())
		}
	}
	return dirs
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

// askLink looks at the alias of a link of the host, then searches entries with its name, and
// plugins.
func (q *query) askLink() error {
	l, err := q.hostLink(q.text)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if l != nil {
		if err := q.askLabel(l); err != nil || len(q.owners)+len(q.others) > 0 {
			return err
		}
		if l.Kind == "bridge" {
			return q.askBridge(l)
		}
	}
	err = q.search(func(a *inventory.Entry) bool {
		return slices.ContainsFunc(a.Parsed.Interfaces, func(i spec.Interface) bool {
			return i.Name == q.text && i.Sandbox == "" && i.Name != q.Bridge(a.Conf)
		})
	}, `"`+q.text+`"`)
	if err == nil && len(q.owners) == 0 {
		err = q.searchHolds(func(list []*inventory.Entry) []*inventory.Entry { return list }, func(data any) bool {
			link, ok := data.(spec.HostLink)
			return ok && (link.Name == q.text || link.Parent == q.text)
		})
	}
	if err != nil || len(q.owners) > 0 {
		return err
	}
	if l == nil { // a namespace that is gone but has an entry
		if err := q.askNetNS(); err != nil || len(q.owners) > 0 {
			q.kind = kindNetNS
			return err
		}
		return &hint.Error{Err: spec.Errorf(spec.CodeUnknown, "there is no network, container, link or namespace %q", q.text), Hint: adviceOf(q.text)}
	}
	return nil
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

// askLabel adds the attachment in a link's label.
func (q *query) askLabel(l *rtnl.Link) error {
	if spec.LabelKey(l.Alias) == "" {
		return nil
	}
	if a, ok := spec.LabelNames(l.Alias); ok {
		return q.lookup(a, "labelled as of")
	}
	return q.searchKey(spec.LabelKey(l.Alias))
}

// searchKey adds the attachment of a key; its names were too long for a label.
func (q *query) searchKey(key string) error {
	return q.search(func(a *inventory.Entry) bool { return a.Key == key })
}

// askBridge adds the networks of a bridge: those configured with it, those in the labels of its
// ports, and if there are none those of the entries.
func (q *query) askBridge(bridge *rtnl.Link) error {
	links, err := inventory.ListLinks()
	if err != nil {
		return err
	}
	q.Links = links
	var networks []string
	add := func(name string) {
		if !slices.Contains(networks, name) {
			networks = append(networks, name)
		}
	}
	lists, _ := chain.Lists(q.confDir)
	for _, l := range lists {
		if doc, err := l.Effective(); err == nil && q.Bridge(q.Conf(doc)) == q.text {
			add(l.Name)
		}
	}
	ports := 0
	for i := range links.All {
		if l := &links.All[i]; l.Master == bridge.Index {
			ports++
			if a, ok := spec.LabelNames(l.Alias); ok {
				add(a.Network)
			}
		}
	}
	if len(networks) == 0 {
		entries, _, err := q.Inventory.Cache.List()
		if err != nil {
			return err
		}
		for _, e := range entries {
			if q.Bridge(q.Conf(e.Config)) == q.text {
				add(e.NetworkName)
			}
		}
	}
	if len(networks) > 0 {
		slices.Sort(networks)
		q.others = append(q.others, fmt.Sprintf("the bridge of %s, with %s", strings.Join(networks, ", "), tty.Plural(ports, "port")))
	}
	return nil
}

// askMAC searches entries with the address, then links of the host, then elements of the rule set.
// It reads the list of links at the same time as the entries, since that takes longer.
func (q *query) askMAC() error {
	mac := q.mac.String()
	var links []rtnl.Link
	listed := make(chan error, 1)
	go func() {
		var err error
		links, err = inventory.AskHost(func(conn *rtnl.Conn) ([]rtnl.Link, error) { return conn.LinksWith(q.mac) })
		listed <- err
	}()
	err := q.search(func(a *inventory.Entry) bool {
		return slices.ContainsFunc(a.Parsed.Interfaces, func(i spec.Interface) bool { return strings.EqualFold(i.MAC, mac) && i.Name != q.Bridge(a.Conf) })
	}, mac, strings.ToUpper(mac))
	if err != nil || len(q.owners) > 0 {
		return err
	}
	if err := <-listed; err != nil {
		return err
	}
	for i := range links {
		l := &links[i]
		if !bytes.Equal(l.MAC, q.mac) {
			continue
		}
		had := len(q.owners) + len(q.others)
		if err := q.askLabel(l); err != nil {
			return err
		}
		if len(q.owners)+len(q.others) == had {
			q.others = append(q.others, "the host's, of "+linkText(l))
		}
	}
	if len(q.owners)+len(q.others) > 0 {
		return nil
	}
	return q.askElements(nft.KindMACGuard, func(e *nft.Element) (holds string) {
		if !bytes.Equal(e.MAC(), q.mac) {
			return ""
		}
		return "the one that " + e.Link() + " may send from, of"
	})
}

// askElements searches owners of elements of the rule set. holds describes what a matching element
// has; empty: it does not match.
func (q *query) askElements(kind nft.Kind, holds func(*nft.Element) string) error {
	held, err := nft.Open(netns.Host()).Elements(kind)
	if err != nil {
		q.Unread = append(q.Unread, err)
	}
	for _, e := range held {
		text := holds(&e)
		if text == "" {
			continue
		}
		ask := func() error { return q.searchKey(e.OwnerKey()) }
		if o := e.Owner(); o.Key() == e.OwnerKey() {
			ask = func() error { return q.lookup(o, text) }
		}
		if err := ask(); err != nil {
			return err
		}
	}
	return nil
}

// askPort searches the elements of host ports, then entries with the port, such as those of other
// plugins, then what plugins have published.
func (q *query) askPort() error {
	err := q.askElements(nft.KindPortMap, func(e *nft.Element) (holds string) {
		if proto, port := e.Port(); port != q.port || proto != q.proto {
			return ""
		}
		return "leads to " + e.Target().String() + " of"
	})
	if err != nil || len(q.owners)+len(q.others) > 0 {
		return err
	}
	matches := func(p spec.Port) bool { return p.HostPort == q.port && p.Protocol == q.proto }
	err = q.search(func(a *inventory.Entry) bool { return slices.ContainsFunc(a.Ports, matches) }, fmt.Sprintf(`"hostPort":%d`, q.port))
	if err != nil || len(q.owners) > 0 {
		return err
	}
	return q.searchHolds(inventory.Publishing, func(data any) bool {
		p, ok := data.(spec.Port)
		return ok && matches(p)
	})
}

// askNetNS searches entries with the path or the ID of the namespace; other runtimes may use
// another path to it.
func (q *query) askNetNS() error {
	known := q.id != netns.ID{}
	matches := func(a *inventory.Entry) bool {
		if !known {
			return strings.TrimPrefix(a.NetNSPath(), "/var") == strings.TrimPrefix(q.path, "/var") // /var/run is /run
		}
		return a.IsIn(q.id)
	}
	texts := []string{filepath.Base(q.path) + `"`}
	if known {
		texts = append(texts, `"`+q.id.String()+`"`)
	}
	if err := q.search(matches, texts...); err != nil || len(q.owners) > 0 || !known {
		return err
	}
	return q.search(matches)
}

// answer returns a line for each owner.
func (q *query) answer() string {
	s := q.screen()
	s.Width = 0
	var rows [][]string
	for _, a := range q.owners {
		rows = append(rows, []string{a.Name(), a.IfName + " on network " + a.NetworkName,
			joined(a.Addresses(), bare), "container " + a.ContainerID, a.NetNSPath()})
	}
	text := s.Table(make([]tty.Column, 5), rows)
	for _, other := range q.others {
		text += spec.Printable(other) + "\n"
	}
	return text
}

// doc returns the answer as JSON.
func (q *query) doc() whoDoc {
	return whoDoc{q.text, q.kind, each(q.owners, func(a *inventory.Entry) ownerDoc {
		return ownerDoc{a.NetworkName, a.ContainerID, a.IfName, a.Name(), a.Runtime(), a.NetNSPath(), notNull(a.Addresses())}
	}), notNull(q.others)}
}
