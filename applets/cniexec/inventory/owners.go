package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/cnibox/cnibox/applets/netfilter"
	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/ipam"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// An OwnerSearch finds the owners of a network's resources, and which of them are alive, for GC: by
// the labels of links and elements, by the leases and by the records of plugins. The cache may not
// have all attachments.
type OwnerSearch struct {
	network string
	records []ownerRecord // those with the attachment's interface
	Found   map[spec.Attachment]*chain.Owner
	Leases  map[netip.Addr]spec.Attachment
	peers   map[uint32]string // MAC addresses of the peers of the host's veths, by index
}

// SearchOwners searches the owners of a network. entries are those of the cache, and records the
// directories of plugins' records.
//
// A host-side veth shows that the namespace exists, since the kernel deletes both veths with it.
// Links of other kinds are in the container. With live, all namespaces are searched unless the
// links of the host account for all attachments (see [rtnl.EachNS]). In a namespace it looks for
// the label of a link, or the leased address, which a link of an external plugin may have.
func SearchOwners(network string, conf *Conf, records []record.Dir, entries []*chain.Entry, live bool) (*OwnerSearch, error) {
	s := &OwnerSearch{network: network, Found: map[spec.Attachment]*chain.Owner{}, Leases: map[netip.Addr]spec.Attachment{},
		peers: map[uint32]string{}}
	err := errors.Join(s.readLinks(live), s.readElements(), s.readLeases(conf.Leases()), s.readRecords(records))
	if err != nil || !live {
		return s, err
	}
	stale := slices.DeleteFunc(slices.Clone(entries), (*chain.Entry).Attached)
	lives := func(e *chain.Entry) bool { return !e.Interrupted() && s.Alive(e.Attachment()) }
	for n := 0; n < endLooks && err == nil && slices.ContainsFunc(stale, lives); n++ {
		time.Sleep(endPause)
		for _, o := range s.Found {
			o.Alive = ""
		}
		err = s.readLinks(true)
	}
	if err == nil && !s.allAccountedFor(conf, entries, stale) {
		err = s.searchNamespaces(conf, stale)
	}
	return s, err
}

// A namespace exists a little longer if a process like lsns(8) looks at it while it ends. A
// namespace that an entry reports as gone is therefore looked at so often, with this pause, before
// it counts as alive.
const (
	endLooks = 10
	endPause = 50 * time.Millisecond
)

// Alive reports whether the search has found that an attachment is alive.
func (s *OwnerSearch) Alive(a spec.Attachment) bool {
	return s.Found[a] != nil && s.Found[a].Alive != ""
}

// owner returns the owner of that name, and adds it if necessary.
func (s *OwnerSearch) owner(a spec.Attachment) *chain.Owner {
	o := s.Found[a]
	if o == nil {
		o = &chain.Owner{Attachment: a}
		s.Found[a] = o
	}
	return o
}

// labelled is owner for the alias of a link; nil: not the label of an attachment to the network. A
// label without room for the names is an error: GC cannot keep what it cannot name.
func (s *OwnerSearch) labelled(l *rtnl.Link) (*chain.Owner, error) {
	if !spec.LabelOf(l.Alias, s.network) {
		return nil, nil
	}
	a, complete := spec.LabelNames(l.Alias)
	if !complete {
		return nil, fmt.Errorf("link %s is of an attachment to network %s whose names have no room in its alias: %s", l.Name, s.network, l.Alias)
	}
	return s.owner(a), nil
}

// readLinks reads the links of the host, and with live looks for the peer of each veth. The IFB of
// a limit may have outlived the container.
func (s *OwnerSearch) readLinks(live bool) error {
	conn, err := rtnl.Dial(netns.Host())
	if err != nil {
		return err
	}
	defer conn.Close()
	links, err := conn.Links()
	if err != nil {
		return err
	}
	for i := range links {
		l := &links[i]
		exists := l.Kind != "ifb"
		if live && l.Kind == "veth" {
			peer, err := conn.Peer(l)
			switch {
			case err == nil:
				s.peers[l.Index] = peer.MAC.String()
			case errors.Is(err, os.ErrNotExist):
				exists = false
			case !errors.Is(err, os.ErrPermission): // the namespace belongs to another user namespace
				return err
			}
		}
		o, err := s.labelled(l)
		switch {
		case err != nil && exists:
			return err
		case o != nil && exists:
			o.Alive = fmt.Sprintf("its link %s leads to a network namespace that exists", l.Name)
		}
	}
	return nil
}

// readElements reads the elements of tables cnibox.
func (s *OwnerSearch) readElements() error {
	held, err := nft.Open(netns.Host()).Elements()
	if err != nil && !netfilter.IsMissing(err) {
		return err
	}
	for _, e := range held {
		if o := e.Owner(); o.Network == s.network && o.Key() == e.OwnerKey() {
			s.owner(o)
		}
	}
	return nil
}

// readLeases reads the leases below a directory; empty: none.
func (s *OwnerSearch) readLeases(dir string) error {
	if dir == "" {
		return nil
	}
	leased, err := ipam.ReadLeases(dir, s.network)
	for _, l := range leased {
		a := spec.Attachment{Network: s.network, ContainerID: l.Owner.ContainerID, IfName: l.Owner.IfName}
		if a.ContainerID != "" {
			s.owner(a)
			s.Leases[l.Addr] = a
		}
	}
	return err
}

// An ownerRecord has the common members of plugins' records.
type ownerRecord struct{ *record.Record[leasesOnRecord] }

// A leasesOnRecord is what dhcp stores in addition to the head.
type leasesOnRecord struct {
	Leases []struct {
		Address netip.Prefix `json:"address"`
	} `json:"leases"`
}

// readRecords reads the records of plugins. GC does not delete unreadable ones.
func (s *OwnerSearch) readRecords(dirs []record.Dir) error {
	var errs []error
	for _, dir := range dirs {
		errs = append(errs, record.Each(dir, func(_ string, rec *record.Record[leasesOnRecord]) error {
			if rec.Network != s.network || rec.ContainerID == "" {
				return nil
			}
			a := rec.Attachment
			s.owner(a)
			if rec.NetNS != "" || rec.Cookie != 0 {
				s.records = append(s.records, ownerRecord{rec})
			}
			for _, l := range rec.Data.Leases {
				s.Leases[l.Address.Addr()] = a
			}
			return nil
		}))
	}
	return errors.Join(errs...)
}

// in reports whether the record is of a namespace.
func (rec *ownerRecord) in(ns *netns.NS, cookie uint64) bool {
	if rec.Cookie != 0 && cookie != 0 {
		return rec.Cookie == cookie
	}
	return rec.NetNS != "" && ns.IsAt(rec.NetNS)
}

// of reports whether a link of the namespace is the recorded one.
func (rec *ownerRecord) of(l *rtnl.Link) bool {
	if rec.Index != 0 {
		return l.Index == rec.Index
	}
	return l.Name == rec.IfName
}

// allAccountedFor reports whether the links of the host account for all attachments: each has one, or an
// entry says that it is alive.
func (s *OwnerSearch) allAccountedFor(conf *Conf, entries, stale []*chain.Entry) bool {
	if !conf.Veth {
		return false // the host may have only a lease or a record of it
	}
	known := map[spec.Attachment]bool{}
	for _, e := range entries {
		a := e.Attachment()
		known[a], known[spec.Attachment{Network: a.Network, ContainerID: a.ContainerID}] = true, true
	}
	for _, e := range stale {
		if !s.Alive(e.Attachment()) && (e.There || !e.Interrupted()) {
			return false
		}
	}
	for a := range s.Found {
		if !known[a] && !s.Alive(a) {
			return false
		}
	}
	return true
}

// searchNamespaces looks for the attachments in all network namespaces except the host's. What it
// does not find is alive unless there is evidence for its end: an earlier boot or, where all
// namespaces can be seen, that it is in none. A namespace with the peer of a veth has an ID on the
// host, so that it can always be seen.
func (s *OwnerSearch) searchNamespaces(conf *Conf, stale []*chain.Entry) error {
	ended := map[spec.Attachment]bool{}
	for _, e := range stale {
		s.owner(e.Attachment())
		ended[e.Attachment()] = !e.SameBoot()
	}
	hidden, err := rtnl.EachNS(s.searchNamespace)
	if hidden.Named == "" && (hidden.Unnamed == "" || conf.Veth) {
		return err
	}
	for a, o := range s.Found {
		if o.Alive == "" && !ended[a] {
			o.Alive = "its network namespace may exist unseen: " + hidden.String()
		}
	}
	return err
}

// searchNamespace looks for them in one namespace. A veth with a label is a host-side veth, of a
// host in a container.
func (s *OwnerSearch) searchNamespace(n *rtnl.Namespace) error {
	if n.NS != nil {
		if host, err := n.NS.Same(netns.Host()); host || err != nil {
			return err
		}
	}
	if err := s.searchRecords(n); err != nil {
		return err
	}
	for _, a := range n.Addrs[0] { // of a process
		s.inUse(a.Prefix.Addr(), &rtnl.Link{}, n.Path)
	}
	for i := range n.Links {
		l := &n.Links[i]
		if l.Kind != "veth" && l.Kind != "ifb" {
			o, err := s.labelled(l)
			if err != nil {
				return err
			}
			if o != nil {
				o.Alive = fmt.Sprintf("there is its link %s in %s", l.Name, n.Path)
			}
		}
		if l.Kind == "veth" && s.peers[l.Parent] != l.MAC.String() {
			continue // it belongs to another host: one in a container, or of another container
		}
		for _, a := range n.Addrs[l.Index] {
			s.inUse(a.Prefix.Addr(), l, n.Path)
		}
	}
	return nil
}

// searchRecords looks for the links on record. In a namespace to which no path leads, the name and
// the index must do.
func (s *OwnerSearch) searchRecords(n *rtnl.Namespace) error {
	if len(s.records) == 0 || len(n.Links) == 0 {
		return nil
	}
	var cookie uint64
	if n.NS != nil {
		var err error
		if cookie, err = n.NS.Cookie(); err != nil {
			return err
		}
	}
	for i := range s.records {
		rec := &s.records[i]
		o := s.owner(rec.Attachment)
		if o.Alive != "" || n.NS != nil && !rec.in(n.NS, cookie) {
			continue
		}
		its := func(l rtnl.Link) bool { return rec.of(&l) && (n.NS != nil || l.Name == rec.IfName) }
		if at := slices.IndexFunc(n.Links, its); at >= 0 {
			o.Alive = fmt.Sprintf("there is its link %s in %s", n.Links[at].Name, n.Path)
		}
	}
	return nil
}

// inUse records that an address, which may be leased, is in use on a link, unless that is another container's.
func (s *OwnerSearch) inUse(addr netip.Addr, l *rtnl.Link, path string) {
	lease, leased := s.Leases[addr]
	if !leased {
		return
	}
	if a, named := spec.LabelNames(l.Alias); named && (a.Network != lease.Network || a.ContainerID != lease.ContainerID) {
		return
	}
	o := s.owner(lease)
	if o.IfName == "" { // a lease of an old version
		o.IfName = cmp.Or(l.Name, "eth0")
	}
	if o.Alive == "" {
		o.Alive = fmt.Sprintf("its address %s is in use in %s", addr, path)
	}
}
