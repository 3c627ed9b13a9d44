package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"strings"

	"cnibox/spec"
)

// Owned lists what o owns of the given kinds; no kinds mean all. Where we
// have no table, it is nothing. No lock is taken: a change that is being made is
// seen in one set and perhaps not in the next.
func (t *Table) Owned(o spec.Attachment, kinds ...Kind) ([]Element, error) {
	s, err := dial(t.ns)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	x := newTx(s)
	var all []Element
	for _, ch := range x.ownedOf(o, kinds) {
		if ch.set.isByOwner() {
			continue
		}
		unread := ch.set == managedBySet || ch.set == isolatedBySet || ch.set == enlistedSet
		all = append(all, Element{ch.set.kind, ch.set.describe(ch.old), unread})
	}
	return all, x.err
}

// found returns the change of an element that the kernel has listed.
func (x *Tx) found(in *set, e element) *change {
	p := elementID{in, string(e.key)}
	if ch := x.index[p]; ch != nil {
		return ch
	}
	return x.newChange(p, e.key, &e)
}

// describe says what an element does, for people: in CHECK's errors, in lists and
// in golden files. Keys of the kernel may be of any length.
func (s *set) describe(e *element) string {
	if s.isByOwner() {
		return s.name
	}
	switch s.kind {
	case KindMasquerade:
		return "masquerade " + s.addr(e.key).String()
	case KindPortMap:
		return s.describePort(e)
	case KindFirewall:
		return s.describeFirewall(e)
	case KindZone:
		return "zone of firewalld for " + s.addr(e.key).String()
	case KindAdverts:
		return "no router advertisements of port " + string(bytes.TrimRight(e.key, "\x00"))
	}
	if s == guardedSet {
		return "guard port " + string(bytes.TrimRight(e.key, "\x00"))
	}
	port, addr := e.key[:min(ifnameLen, len(e.key))], e.key[min(ifnameLen, len(e.key)):]
	return fmt.Sprintf("port %s from %s", bytes.TrimRight(port, "\x00"), net.HardwareAddr(addr[:min(macLen, len(addr))]))
}

// describePort says what an element of the sets for host ports does, in the
// words of nft. Keys of the kernel are read without trust in their length.
func (s *set) describePort(e *element) string {
	key, host := e.key, ""
	if s.key != portType {
		host = addrOf(key, s.family).String() + " "
		key = key[min(len(key), int(addrLen(s.family))):]
	}
	if len(key) < 8 {
		return "unreadable"
	}
	port := fmt.Sprintf("%s dport %d", ProtoName(key[0]), binary.BigEndian.Uint16(key[4:]))
	switch {
	case strings.HasPrefix(s.name, "hairpin"):
		return "masquerade of " + host + port
	case s.verdicts():
		return host + port + " with conditions"
	}
	return fmt.Sprintf("%s%s -> %s", host, port, targetOf(e.data, s.family))
}
