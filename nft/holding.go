package nft

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"

	"cnibox/spec"
)

// A Holding is an element of our tables with its owner, as [Table.Holdings] finds it.
type Holding struct {
	Kind  Kind
	Key   string          // of the owner, see [spec.Attachment.Key]
	Owner spec.Attachment // incomplete where the names did not fit: then Owner.Key() is not Key

	// The container's address that is masqueraded or allowed, or is in a zone; of a host
	// port the address of the host, which is zero for any.
	Addr netip.Addr

	// Of a host port alone.
	Proto  string // tcp, udp or sctp
	Port   uint16
	Target netip.AddrPort

	// Of a guarded port of a bridge alone.
	Link string
	MAC  net.HardwareAddr // that it may send from
}

// holdingSets are the sets of which [Table.Holdings] makes something.
func holdingSets() (all []*set) {
	for _, family := range []byte{v4, v6} {
		for _, of := range []perFamily{masqSet, masqNextSet, allowSet, allowNextSet, zoneSet, zoneNextSet,
			anyPorts.dnat, anyPorts.cond, hostPorts.dnat, hostPorts.cond} {
			all = append(all, of.of(family))
		}
	}
	return append(all, macsSet)
}

// Holdings returns what attachments have of the kinds KindMasquerade, KindPortMap,
// KindMACGuard, KindFirewall and KindZone; no kinds mean all of these. Each set is read once. Where
// a table is not there, or its rules were flushed, without which elements do nothing, it has nothing.
// No lock is taken: a change that is being made is seen in one set and perhaps not in the next.
// The error is os.ErrPermission without CAP_NET_ADMIN.
func (t *Table) Holdings(kinds ...Kind) ([]Holding, error) {
	s, err := dial(t.ns)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	x := newTx(s)
	labelled := func(comment []byte) bool { return spec.LabelKey(string(comment)) != "" }
	var all []Holding
	for _, in := range holdingSets() {
		if !has(kinds, in.kind) {
			continue
		}
		version, err := x.version(in.table)
		if err == nil && version != "" {
			err = s.elements(in, labelled, func(e element) {
				if h, ok := in.holding(&e); ok {
					all = append(all, h)
				}
			})
		}
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// holding reads an element; false for a key that is cut short.
func (s *set) holding(e *element) (h Holding, ok bool) {
	h = Holding{Kind: s.kind, Key: ownerKey(e.owner), Owner: ownerNames(e.owner)}
	switch s.kind {
	case KindPortMap:
	case KindMACGuard:
		if len(e.key) < ifnameLen+macLen {
			return h, false
		}
		h.Link = string(bytes.TrimRight(e.key[:ifnameLen], "\x00"))
		h.MAC = net.HardwareAddr(e.key[ifnameLen : ifnameLen+macLen])
		return h, true
	default:
		h.Addr = s.addr(e.key)
		return h, h.Addr.IsValid()
	}
	key := e.key
	if s.key != portType {
		h.Addr = addrOf(key, s.family)
		key = key[min(len(key), int(addrLen(s.family))):]
	}
	if len(key) < 8 {
		return h, false
	}
	h.Proto, h.Port, h.Target = ProtoName(key[0]), binary.BigEndian.Uint16(key[4:]), targetOf(e.data, s.family)
	return h, true
}
