package nft

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/nlconn"
	"github.com/cnibox/cnibox/spec"
)

// watchSpace is the receive buffer in bytes: each element of a transaction has one notification of
// some 1 KB.
const watchSpace = 16 << 20

// A Watch receives the kernel's notifications about the rule set.
type Watch struct{ nl *nlconn.Conn }

// WatchRules begins to watch the rule set of a namespace. The caller closes the Watch.
func WatchRules(ns *netns.NS) (*Watch, error) {
	nl, err := nlconn.Listen(ns, unix.NETLINK_NETFILTER, 1<<(unix.NFNLGRP_NFTABLES-1))
	if err != nil {
		return nil, fmt.Errorf("rule set notifications: %w", err)
	}
	nl.ReceiveSpace(watchSpace)
	return &Watch{nl}, nil
}

// Close ends the watch.
func (w *Watch) Close() { w.nl.Close() }

// A Loss is what a transaction has deleted of what plugins made, and has not made again.
type Loss struct {
	Base  bool   // what no verb deletes: tables, sets, fixed chains, rules. Or the kernel dropped notifications
	Parts []Part // what the release of an attachment deletes as well
}

// A Part is an element of our tables, or a rule of CNI-FORWARD for one address.
type Part struct {
	element Element // its set is nil: it is the rule
	rule    acceptRule
}

// Of reports whether the part is of an attachment with these addresses.
func (p *Part) Of(a spec.Attachment, addrs []netip.Addr) bool {
	e := &p.element
	switch {
	case e.set == nil:
		return slices.Contains(addrs, p.rule.ip)
	case e.OwnerKey() != "":
		return e.OwnerKey() == a.Key()
	}
	member := unix.ByteSliceToString(memberName(a)) // in the comment of what bridges share, or in the key
	return e.comment == sharedBy(memberName(a)) || strings.Contains(string(e.key), member)
}

// MayBeIn reports whether a text with the names and addresses of an attachment may be of that of the
// part; it is faster than to decode it.
func (p *Part) MayBeIn(text []byte) bool {
	if p.element.set == nil {
		return bytes.Contains(text, []byte(p.rule.ip.String()))
	}
	o := p.element.Owner()
	return o.Key() != p.element.OwnerKey() || bytes.Contains(text, []byte(o.ContainerID))
}

// Missing returns the parts that do not exist now.
func (t *Table) Missing(parts []Part) (missing []Part, err error) {
	s, err := t.dial()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	rules := map[byte]map[acceptRule]bool{}
	for i := range parts {
		p := &parts[i]
		exists := false
		if p.element.set != nil {
			e, err := s.getElement(p.element.set, p.element.key)
			if err != nil {
				return nil, err
			}
			exists = e != nil
		} else {
			family := familyOf(p.rule.ip)
			if rules[family] == nil {
				if rules[family], err = s.acceptRules(family); err != nil {
					return nil, err
				}
			}
			exists = rules[family][p.rule]
		}
		if !exists {
			missing = append(missing, *p)
		}
	}
	return missing, nil
}

// acceptRules returns the rules of CNI-FORWARD for addresses.
func (s *sock) acceptRules(family byte) (map[acceptRule]bool, error) {
	all := map[acceptRule]bool{}
	rules, err := s.rulesOf(family, filterTable, filterChain)
	for i := range rules {
		if r, ok := rules[i].acceptRule(); ok {
			all[r] = true
		}
	}
	return all, err
}

// Next returns the loss of the next transaction that has one. The error is the context's if that
// ends first.
func (w *Watch) Next(ctx context.Context) (Loss, error) {
	t := newTransaction()
	for {
		ms, lost, err := w.nl.Notified(ctx)
		if err != nil || lost {
			return Loss{Base: lost}, err
		}
		for _, m := range ms {
			switch {
			case len(m.Data) < headerLen:
			case m.Header.Type == nfTables|unix.NFT_MSG_NEWGEN: // the end of the transaction
				if loss := t.loss(); loss.Base || len(loss.Parts) > 0 {
					return loss, nil
				}
				t = newTransaction()
			default:
				t.add(m)
			}
		}
	}
}

// An object is what a notification is about. Rules have no name: one that is made again with the
// same expressions is the same.
type object struct {
	kind         byte // NFT_MSG_NEW…
	family       byte
	table, chain string // chain: also the set
	text         string // of a rule
}

// A transaction has what was deleted and not made again so far.
type transaction struct {
	objects  map[object]int
	elements map[string]Element // by set and key
	rules    map[acceptRule]int
}

func newTransaction() *transaction {
	return &transaction{map[object]int{}, map[string]Element{}, map[acceptRule]int{}}
}

// add records a notification: one about something new cancels an earlier one about the same.
func (t *transaction) add(m netlink.Message) {
	deleted := deletes(m)
	family, attrs := m.Data[0], m.Data[headerLen:]
	o := object{family: family, table: text(attrs, unix.NFTA_RULE_TABLE)} // attribute 1 is the table in all messages
	own := o.table == TableName && (family == inet || family == bridge)
	filter := o.table == filterTable && (family == v4 || family == v6)
	if !own && !filter {
		return
	}
	switch m.Header.Type &^ 0xff00 {
	case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE:
		o.kind = unix.NFT_MSG_NEWTABLE
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		o.kind, o.chain = unix.NFT_MSG_NEWCHAIN, text(attrs, unix.NFTA_CHAIN_NAME)
		if filter && o.chain != filterChain && o.chain != filterHook {
			return
		}
	case unix.NFT_MSG_NEWSET, unix.NFT_MSG_DELSET:
		o.kind, o.chain = unix.NFT_MSG_NEWSET, text(attrs, unix.NFTA_SET_NAME)
		if filter {
			return
		}
	case unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM:
		if own {
			t.addElements(family, attrs, deleted)
		}
		return
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		r := readRule(family, attrs)
		if filter && r.chain == filterChain {
			if p, ok := r.acceptRule(); ok {
				count(t.rules, p, deleted)
				return
			}
		}
		o.kind, o.chain, o.text = unix.NFT_MSG_NEWRULE, r.chain, string(r.exprs)
		switch {
		case filter && r.chain == filterHook && isHook(r), filter && r.chain == filterChain && r.xtComment() == adminComment:
			o.text = r.jump() // the expressions have counters
		case filter, strings.HasPrefix(r.chain, adminPrefix): // an administrator's
			return
		}
	default:
		return
	}
	count(t.objects, o, deleted)
}

// count counts how often an object was deleted and not made again.
func count[K comparable](counts map[K]int, k K, deleted bool) {
	if deleted {
		counts[k]++
	} else if counts[k] > 0 {
		counts[k]--
	}
}

// addElements is add for elements.
func (t *transaction) addElements(family byte, attrs []byte, deleted bool) {
	if !deleted && len(t.elements) == 0 {
		return // a large transaction may add thousands
	}
	name := text(attrs, unix.NFTA_SET_ELEM_LIST_SET)
	all := sets()
	i := slices.IndexFunc(all, func(s *set) bool { return s.table == family && s.name == name })
	if i < 0 {
		return
	}
	decodeElements(all[i], attrs, nil, func(e Element) {
		if id := name + "\x00" + string(e.key); deleted {
			e.key = bytes.Clone(e.key)
			t.elements[id] = e
		} else {
			delete(t.elements, id)
		}
	})
}

// loss returns what the transaction has deleted.
func (t *transaction) loss() (l Loss) {
	for o, n := range t.objects {
		l.Base = l.Base || n > 0 && !t.unused(o)
	}
	for _, e := range t.elements {
		l.Parts = append(l.Parts, Part{element: e})
	}
	for r, n := range t.rules {
		if n > 0 {
			l.Parts = append(l.Parts, Part{rule: r})
		}
	}
	return l
}

// unused reports whether an object is a chain that goes with the last element that jumps to it, or
// a rule of such a chain.
func (t *transaction) unused(o object) bool {
	if o.table != TableName || o.kind != unix.NFT_MSG_NEWCHAIN && o.kind != unix.NFT_MSG_NEWRULE {
		return false
	}
	fixed := o.chain == versionChain || slices.ContainsFunc(chainsOf(o.family), func(c chain) bool { return c.name == o.chain })
	return !fixed && t.objects[object{kind: unix.NFT_MSG_NEWCHAIN, family: o.family, table: o.table, chain: o.chain}] > 0
}
