package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/spec"
)

// A PortMap publishes a port of a container on the host.
type PortMap struct {
	Proto        uint8          // unix.IPPROTO_TCP, IPPROTO_UDP or IPPROTO_SCTP
	HostIP       netip.Addr     // zero or unspecified: any address of the host
	HostPort     uint16         // 1 to 65535
	Target       netip.AddrPort // the container's address and port
	TargetPrefix netip.Prefix   // the container's subnet; zero: its address alone

	// SNAT masquerades connections from the container's subnet, from the container itself and from
	// 127.0.0.0/8; without it their answers would not return through the host. MasqAll masquerades
	// all connections.
	SNAT, MasqAll bool

	// A packet is translated to the target only if all Conditions match.
	Conditions []Match

	// Replace takes the port over from another owner whose network namespace is gone; see
	// [TakenError].
	Replace bool
}

// A TakenError reports that a host port belongs to another attachment, with that attachment's
// element.
type TakenError struct{ Element }

// Error names the port, as "tcp 10.0.0.1:8080" or "tcp 8080", and its owner, whose names may be cut short.
func (e *TakenError) Error() string {
	proto, port := e.Port()
	host := fmt.Sprint(port)
	if a := e.Addr(); a.IsValid() {
		host = netip.AddrPortFrom(a, port).String()
	}
	return fmt.Sprintf("host port %s %s is taken by %s", proto, host, e.Owner())
}

// PortMap publishes a port. The error is a *[TakenError] if another attachment has the port, or if
// this update assigns it twice; otherwise the mapping is invalid and nothing is planned for it.
func (x *Tx) PortMap(o spec.Attachment, m PortMap) error {
	if err := m.valid(); err != nil {
		return err
	}
	m.normalize()
	family := familyOf(m.Target.Addr())
	sets, key := m.place()
	plain, conditional, dispatch := sets.dnat.of(family), sets.condDNAT.of(family), sets.condDispatch.of(family)
	to := Element{set: plain, key: key, data: keyOf(m.Target.Addr().AsSlice(), port16(m.Target.Port()))}
	for _, published := range []*set{plain, conditional} {
		if x.isAbsent(published, key) {
			continue
		}
		ch := x.change(published, key)
		if err := x.replaceable(o, &m, ch, &to); err != nil {
			return err
		}
		x.assign(ch, nil)
	}
	if !x.isAbsent(dispatch, key) {
		x.assign(x.change(dispatch, key), nil)
	}
	if len(m.Conditions) == 0 {
		x.put(o, to)
	} else {
		group, err := condGroup(o.Network, family, m.HostIP.IsValid(), m.Conditions)
		if err != nil {
			return err
		}
		to.set = conditional
		x.put(o, to)
		x.put(o, Element{set: dispatch, key: key, chain: x.ensureChain(group)})
	}
	x.hairpin(o, &m, family)
	return x.err
}

// place returns the sets of the host port of a normalized mapping, and its key there.
func (m *PortMap) place() (portSets, []byte) {
	key := keyOf([]byte{m.Proto}, port16(m.HostPort))
	if m.HostIP.IsValid() {
		return hostPorts, append(m.HostIP.AsSlice(), key...)
	}
	return anyPorts, key
}

// hairpinKey returns the key of the target of a normalized mapping.
func (m *PortMap) hairpinKey() []byte {
	return keyOf(m.Target.Addr().AsSlice(), []byte{m.Proto}, port16(m.Target.Port()))
}

// replaceable reports whether to may replace the existing element. It may if that is o's own from
// an earlier update, has the same target, or is to be taken over. It may not if this update has
// given the port to another target of o. The error is a *[TakenError].
func (x *Tx) replaceable(o spec.Attachment, m *PortMap, ch *change, to *Element) error {
	e := ch.new
	if e == nil {
		return nil
	}
	own := e.OwnerKey() == x.key(o)
	if own && !ch.assigned() || own && string(e.data) == string(to.data) || !own && m.Replace {
		return nil
	}
	return &TakenError{*e}
}

// hairpin marks the connections of the mapping that must be masqueraded, by their target. The host
// port cannot be part of the key, since nft lists such a rule but cannot load it again; see
// [publishedMark].
func (x *Tx) hairpin(o spec.Attachment, m *PortMap, family byte) {
	key := m.hairpinKey()
	set := hairpinSet.of(family)
	switch {
	case m.MasqAll:
		x.put(o, Element{set: set, key: key, chain: masqAll})
	case m.SNAT:
		name := hairpinName(m.TargetPrefix)
		if x.chains[name] == nil {
			x.ensureChain(hairpinChain(m.TargetPrefix))
		}
		x.put(o, Element{set: set, key: key, chain: name})
	default:
		if x.isAbsent(set, key) {
			return
		}
		if ch := x.change(set, key); !ch.assigned() {
			x.assign(ch, nil) // of an earlier mapping
		}
	}
}

// hairpinChain masquerades packets from the prefix or from 127.0.0.0/8. Otherwise the container
// would answer a neighbour directly, from an address that the neighbour did not contact, and would
// send answers for 127.0.0.1 to itself.
func hairpinChain(p netip.Prefix) chain {
	family := familyOf(p.Addr())
	c := chain{name: hairpinName(p), needs: masqNeeds, rules: []rule{
		rule{}.family(family).addr(family, false).inside(expr.CmpOpEq, p).masquerade(),
	}}
	if family == v4 {
		c.rules = append(c.rules, rule{}.family(v4).
			payload(expr.PayloadBaseNetworkHeader, saddr4At, 1, 0).equal(127).masquerade())
	}
	return c
}

// hairpinName returns the name of that chain.
func hairpinName(p netip.Prefix) string { return "hairpin-" + prefixName(p) }

// valid checks what the kernel accepts without an error: a host port to which no packet can be
// sent, and a target that does not exist.
func (m *PortMap) valid() error {
	to := m.Target.Addr()
	switch {
	case m.Proto != unix.IPPROTO_TCP && m.Proto != unix.IPPROTO_UDP && m.Proto != unix.IPPROTO_SCTP:
		return fmt.Errorf("port map: protocol %d is not tcp, udp or sctp", m.Proto)
	case m.HostPort == 0 || m.Target.Port() == 0:
		return errors.New("port map: ports begin at 1")
	case !to.IsValid() || to.IsUnspecified():
		return errors.New("port map: no target address")
	case m.HostIP.IsValid() && !m.HostIP.IsUnspecified() && m.HostIP.Unmap().Is4() != to.Unmap().Is4():
		return fmt.Errorf("port map: host address %s and target %s are of different families", m.HostIP, to)
	}
	return nil
}

// normalize gives each address one spelling, since keys are compared as bytes: no zone, no
// IPv4-mapped address, the zero Addr for any address. A subnet that does not contain the target is
// replaced by the target alone.
func (m *PortMap) normalize() {
	m.HostIP = m.HostIP.Unmap().WithZone("")
	if m.HostIP.IsUnspecified() {
		m.HostIP = netip.Addr{}
	}
	to := m.Target.Addr().Unmap().WithZone("")
	m.Target = netip.AddrPortFrom(to, m.Target.Port())
	p := unmapPrefix(m.TargetPrefix)
	if !p.IsValid() || !p.Contains(to) {
		p = netip.PrefixFrom(to, to.BitLen())
	}
	m.TargetPrefix = p.Masked()
}

// ProtoName returns the name of a protocol as nft(8) has it.
func ProtoName(p uint8) string {
	switch p {
	case unix.IPPROTO_TCP:
		return "tcp"
	case unix.IPPROTO_UDP:
		return "udp"
	case unix.IPPROTO_SCTP:
		return "sctp"
	case unix.IPPROTO_ICMP:
		return "icmp"
	case unix.IPPROTO_ICMPV6:
		return "icmpv6"
	}
	return fmt.Sprint("protocol ", p)
}

// targetOf reads the data of a dnat map, address before port; the zero AddrPort if it is truncated.
func targetOf(data []byte, family byte) netip.AddrPort {
	n := int(addrLen(family))
	if len(data) < n+portLen {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(addrOf(data, family), binary.BigEndian.Uint16(data[n:]))
}
