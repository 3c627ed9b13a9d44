// Package foreign asks the kernel what the rules of other programs do with packets. Nothing that plugins run imports it.
package foreign

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/nlconn"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/nft/internal/wire"
	"github.com/cnibox/cnibox/spec"
)

// A Flow selects the first packets of connections: TCP packets with SYN and without ACK, all
// packets of other protocols.
type Flow struct {
	Proto uint8        // unix.IPPROTO_TCP, IPPROTO_UDP or IPPROTO_SCTP; 0: any
	Src   []netip.Addr // empty: any; else of the family of Dst
	Dst   netip.Addr   // zero: any address of this host
	Port  uint16       // of the destination; 0: any
	Tag   *Tag         // of probes, which have all other fields empty; nil: any packets
}

// A table's name is tableTrace and the process ID. The flag tableOwner (NFT_TABLE_F_OWNER of
// include/uapi/linux/netfilter/nf_tables.h, Linux 5.12) binds a table to the socket that made it:
// no other socket can change it, and it is deleted with the socket.
const (
	tableTrace = "cnibox-trace-"
	tableOwner = 1 << 1
)

// Of a busy flow not every packet is traced, since that would slow down the host: in a second otherRate, and
// sampleRate more of those in whose byte at [sampleAt] the bits of sampleMask are 0. No translation of addresses
// changes that byte, so of these the tracers of all network namespaces choose the same.
const (
	otherRate  = 50
	sampleRate = 1000
	sampleMask = 0x3f
)

// sampleAt returns the offset in the transport header of a byte that differs between the first packets of
// connections: of TCP the last one of the sequence number (RFC 9293, 3.1), of UDP the second one of the data, as of
// the ID of DNS, of SCTP the last one of the initiate tag (RFC 9260, 3.3.2).
func sampleAt(proto uint8) (offset uint32, ok bool) {
	switch proto {
	case unix.IPPROTO_TCP:
		return 7, true
	case unix.IPPROTO_UDP:
		return 9, true
	case unix.IPPROTO_SCTP:
		return 19, true
	}
	return 0, false
}

// The receive buffer in bytes: a packet has some 30 messages of 1 KB, and hundreds of probes are sent at a time.
const (
	traceSpace = 4 << 20
	probeSpace = 16 << 20
)

// firstPrio runs after the one hook of br_netfilter (ip_sabotage_in) that keeps packets passed up
// by a bridge from traversing prerouting a second time.
const firstPrio = math.MinInt32 + 1

// Byte offsets of fields in the headers of TCP (RFC 9293), IPv4 and IPv6, and bits of the TCP
// flags.
const (
	tcpFlagsAt                = 13
	tcpSYN, tcpACK            = 1 << 1, 1 << 4
	proto4At                  = 9
	proto6At                  = 6
	saddr4At                  = 12
	saddr6At                  = 8
	sportAt, dportAt, portLen = 0, 2, 2
	addr4Len, addr6Len        = 4, 16
	firstOf, lastOf           = "-first", "-last"
	ownFirst                  = "first" // Traced.Own
)

// traceHooks has the hooks by number; NF_INET_* and NF_BR_* have the same numbers.
var traceHooks = [...]string{"prerouting", "input", "forward", "output", "postrouting"}

// Families of tables.
const (
	inet   = unix.NFPROTO_INET
	v4     = unix.NFPROTO_IPV4
	v6     = unix.NFPROTO_IPV6
	bridge = unix.NFPROTO_BRIDGE
)

// A chainID names a chain.
type chainID struct {
	family      byte
	table, name string
}

func familyOf(a netip.Addr) byte {
	if a.Is4() {
		return v4
	}
	return v6
}

// A Tracer reports what nf_tables does with packets of a flow, in one network namespace. At each
// hook its tables have one chain before all others and one after them. The first chains set nftrace
// on packets that come in (prerouting) or that this host sends (output).
type Tracer struct {
	nl     *nlconn.Conn // notifications
	owner  *nlconn.Conn // owns the tables
	tables []string     // their names
	chains map[chainID]BaseChain
	flow   Flow

	mu     sync.Mutex // messages are read while Missed is called
	counts map[traceLimit]traceCount
	lost   bool // the kernel has dropped messages
	behind bool // it has before Restart
}

// A traceLimit is a rule of a tracer, which traces a limited number of packets.
type traceLimit struct {
	family byte
	chain  string
	handle uint64
}

// A traceCount has the numbers of packets that a rule has traced.
type traceCount struct{ sampled, all int }

// A BaseChain describes where a chain is registered.
type BaseChain struct {
	Hook     string
	Priority int32
}

// Trace begins to trace a flow in ns. The caller closes the Tracer, then ns. Before Linux 5.12 the
// error has code [spec.CodeHost]: a table without an owner would stay if the process was killed.
func Trace(ns *netns.NS, f Flow) (*Tracer, error) {
	nl, err := nlconn.Listen(ns, unix.NETLINK_NETFILTER, 1<<(unix.NFNLGRP_NFTRACE-1))
	if err != nil {
		return nil, fmt.Errorf("nft: trace messages: %w", wire.Explain(err, ""))
	}
	nl.ReceiveSpace(map[bool]int{false: traceSpace, true: probeSpace}[f.Tag != nil])
	owner, err := nlconn.Listen(ns, unix.NETLINK_NETFILTER, 0)
	if err != nil {
		nl.Close()
		return nil, fmt.Errorf("nft: %w", err)
	}
	t := &Tracer{nl: nl, owner: owner, flow: f, counts: map[traceLimit]traceCount{}}
	err = t.addTable(inet, f)
	if err == nil {
		err = t.addTable(bridge, f)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
			err = nil // without CONFIG_NF_TABLES_BRIDGE packets meet no such rules
		}
	}
	if err == nil {
		err = t.readChains()
	}
	if err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// tracers counts the tables of this process.
var tracers atomic.Uint32

// Close ends the trace. The kernel deletes the tables with the socket.
func (t *Tracer) Close() {
	t.nl.Close()
	t.owner.Close()
}

// addTable creates the table of a family with its chains and rules.
func (t *Tracer) addTable(family byte, f Flow) error {
	// The kernel deletes a table with the last reference to its owner's socket. A child process
	// that is just starting may hold one for a moment, so the next Tracer uses another name.
	name := fmt.Sprintf("%s%d-%d", tableTrace, os.Getpid(), tracers.Add(1))
	t.tables = append(t.tables, name)
	owned, err := wire.Message(0, 0, family, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_TABLE_NAME, name)
		ae.Uint32(unix.NFTA_TABLE_FLAGS, tableOwner)
	})
	if err != nil {
		return err
	}
	const needs = "CONFIG_NF_TABLES_INET"
	tbl := &nftables.Table{Name: name, Family: nftables.TableFamily(family)}
	what := "table " + name
	var b wire.Batch
	b.Add(wire.Step{What: what, Needs: needs, Flags: netlink.Excl, Data: owned.Data}).AddTable(tbl)
	for hook, hookName := range traceHooks {
		for _, end := range []struct {
			name string
			prio nftables.ChainPriority
		}{{firstOf, firstPrio}, {lastOf, math.MaxInt32}} {
			chain := &nftables.Chain{
				Table: tbl, Name: hookName + end.name, Type: nftables.ChainTypeFilter,
				Hooknum: new(nftables.ChainHook(hook)), Priority: &end.prio, Policy: new(nftables.ChainPolicyAccept),
			}
			b.Add(wire.Step{What: "chain " + chain.Name + " of " + what}).AddChain(chain)
			var rules []rule
			switch {
			case end.name == lastOf:
				rules = f.Tag.ends(family, hook)
			case hook == unix.NF_INET_PRE_ROUTING || hook == unix.NF_INET_LOCAL_OUT:
				rules = f.rules(family)
			}
			for _, r := range rules {
				b.Add(wire.Step{What: "rule of " + what, Needs: "CONFIG_NFT_FIB_INET or CONFIG_NFT_LIMIT"}).AddRule(&nftables.Rule{Table: tbl, Chain: chain, Exprs: r})
			}
		}
	}
	err = b.Commit(t.owner)
	var refused *wire.Error
	if errors.As(err, &refused) && refused.What == what && (errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)) {
		return spec.Errorf(spec.CodeHost, "%w: tracing needs Linux 5.12, whose tables can have an owner, and %s", err, needs)
	}
	return err
}

// rules set nftrace on the packets of a flow. The expression fib, which matches the host's
// addresses, does not work in family bridge: packets that a bridge passes up to the host are traced
// from inet prerouting on.
func (f Flow) rules(table byte) (rules []rule) {
	families := []byte{v4, v6}
	switch {
	case f.Tag != nil:
		return f.Tag.starts()
	case f.Dst.IsValid():
		families = []byte{familyOf(f.Dst)}
	case table == bridge:
		return nil
	}
	for _, family := range families {
		r := rule{}.meta(expr.MetaKeyNFPROTO).equal(family)
		if table == bridge {
			r = rule{}.meta(expr.MetaKeyPROTOCOL).equal(binary.BigEndian.AppendUint16(nil, map[byte]uint16{v4: unix.ETH_P_IP, v6: unix.ETH_P_IPV6}[family])...)
		}
		if f.Dst.IsValid() {
			r = r.addr(family, true).equal(f.Dst.AsSlice()...)
		} else {
			r = r.localDst()
		}
		if f.Proto != 0 {
			r = r.meta(expr.MetaKeyL4PROTO).equal(f.Proto)
		}
		if f.Port != 0 {
			r = r.payload(expr.PayloadBaseTransportHeader, dportAt, portLen).equal(binary.BigEndian.AppendUint16(nil, f.Port)...)
		}
		if f.Proto == unix.IPPROTO_TCP {
			r = r.payload(expr.PayloadBaseTransportHeader, tcpFlagsAt, 1).mask(tcpSYN | tcpACK).equal(tcpSYN)
		}
		if len(f.Src) == 0 {
			rules = append(rules, f.limited(r)...)
		}
		for _, src := range f.Src {
			rules = append(rules, f.limited(slices.Clip(r).addr(family, false).equal(src.AsSlice()...))...)
		}
	}
	return rules
}

// limited returns the rules that trace what r matches.
func (f Flow) limited(r rule) (rules []rule) {
	if at, ok := sampleAt(f.Proto); ok {
		rules = append(rules, slices.Clip(r).payload(expr.PayloadBaseTransportHeader, at, 1).mask(sampleMask).equal(0).traced(sampleRate))
	}
	return append(rules, slices.Clip(r).traced(otherRate))
}

// traced sets nftrace, for a number of packets a second.
func (r rule) traced(rate uint32) rule {
	return append(r, &expr.Limit{Type: expr.LimitTypePkts, Rate: uint64(rate), Unit: expr.LimitTimeSecond, Burst: rate}).trace()
}

// trace sets nftrace.
func (r rule) trace() rule {
	return append(r,
		&expr.Immediate{Register: reg, Data: []byte{1}},
		&expr.Meta{Key: expr.MetaKeyNFTRACE, SourceRegister: true, Register: reg})
}

// readChains reads the registration of the base chains of all tables.
func (t *Tracer) readChains() error {
	t.chains = map[chainID]BaseChain{}
	get, err := wire.Message(wire.Tables|unix.NFT_MSG_GETCHAIN, netlink.Dump, unix.NFPROTO_UNSPEC, nil)
	if err != nil {
		return err
	}
	ms, err := t.owner.Dump(get)
	if err != nil {
		return fmt.Errorf("nft: read the chains: %w", err)
	}
	for _, m := range ms {
		if len(m.Data) < wire.HeaderLen {
			continue
		}
		family, data := m.Data[0], m.Data[wire.HeaderLen:]
		hook := nlconn.Attribute(data, unix.NFTA_CHAIN_HOOK)
		number, names := nlconn.Number(hook, unix.NFTA_HOOK_HOOKNUM), traceHooks[:]
		if family == unix.NFPROTO_NETDEV {
			names = []string{"ingress", "egress"}
		}
		if hook == nil || number >= uint64(len(names)) {
			continue
		}
		id := chainID{family, nlconn.Text(data, unix.NFTA_CHAIN_TABLE), nlconn.Text(data, unix.NFTA_CHAIN_NAME)}
		t.chains[id] = BaseChain{names[number], int32(nlconn.Number(hook, unix.NFTA_HOOK_PRIORITY))}
	}
	return nil
}

// LinkLayerChains returns the base chains that frames pass which are no IP packets: those of families bridge, netdev and
// arp, in the syntax of nft, without those of this program.
func (t *Tracer) LinkLayerChains() (chains []string) {
	for id := range t.chains {
		own := id.table == nft.TableName || strings.HasPrefix(id.table, tableTrace)
		if (id.family == bridge || id.family == unix.NFPROTO_NETDEV || id.family == unix.NFPROTO_ARP) && !own {
			chains = append(chains, fmt.Sprintf("%s %s %s", familyText(id.family), id.table, id.name))
		}
	}
	return chains
}

// A Traced is one trace message about a packet: a rule that matched, or the end of a chain.
type Traced struct {
	ID      uint32 // of the packet, in one family
	Packet  *Packet
	Family  string // of the table, in the syntax of nft
	Table   string
	Chain   string
	Base    *BaseChain // nil: another chain jumps to it
	Handle  uint64     // of the rule; 0: the end of the chain
	Verdict string     // "accept", "drop", "continue", "jump CHAIN", …
	Policy  bool       // the verdict is the chain's policy
	Own     string     // for chains of this trace: "first" or "last"; else empty

	family byte
}

// A Packet has the packet fields in the first message of each base chain.
type Packet struct {
	Bridged  bool // a rule of family bridge reports it
	sampled  bool // the bits of sampleMask are 0
	Proto    uint8
	Src, Dst netip.AddrPort // port 0: none, or unknown
	In, Out  uint32         // links; 0: none
	Mark     uint32
	Probe    uint16 // number of the probe; 0: none
}

// Next waits for messages and returns them in the kernel's order. Messages about packets other than
// IP, and about rules of other traces, are omitted. The error is the context's if that ends first.
func (t *Tracer) Next(ctx context.Context) (all []Traced, err error) {
	ms, lost, err := t.nl.Notified(ctx)
	return t.decodeAll(ms, lost), err
}

// Rest returns the pending messages without waiting.
func (t *Tracer) Rest() (all []Traced, err error) {
	for {
		ms, lost, err := t.nl.Pending()
		if err != nil || len(ms) == 0 && !lost {
			return all, err
		}
		all = append(all, t.decodeAll(ms, lost)...)
	}
}

// Restart drops the pending messages. What has been lost before does not count.
func (t *Tracer) Restart() error {
	_, err := t.Rest()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lost, t.behind = false, t.behind || t.lost
	return err
}

// Missed reports whether something about packets that have come since Restart may not have been reported: the kernel
// has dropped messages.
func (t *Tracer) Missed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lost
}

// Misses reports whether the tracer may not have traced a packet that another one has traced: as Missed, or as more
// have come than it traces.
func (t *Tracer) Misses(p *Packet) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, samples := sampleAt(t.flow.Proto)
	if t.lost || t.behind && !(samples && p.sampled) {
		return true
	}
	for _, n := range t.counts {
		if samples && p.sampled && n.sampled >= sampleRate || !(samples && p.sampled) && n.all >= otherRate {
			return true
		}
	}
	return false
}

// count counts a message about a packet that a rule of the tracer has begun to trace, if it is one.
func (t *Tracer) count(e *Traced) {
	if e.Own != ownFirst || e.Handle == 0 {
		return
	}
	l := traceLimit{e.family, e.Chain, e.Handle}
	n := t.counts[l]
	n.all++
	if e.Packet != nil && e.Packet.sampled {
		n.sampled++
	}
	t.counts[l] = n
}

func (t *Tracer) decodeAll(ms []netlink.Message, lost bool) (all []Traced) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lost = t.lost || lost
	for _, m := range ms {
		if m.Header.Type != wire.Tables|unix.NFT_MSG_TRACE || len(m.Data) < wire.HeaderLen {
			continue
		}
		if e, ok := t.decode(m.Data[0], m.Data[wire.HeaderLen:]); ok {
			t.count(&e)
			all = append(all, e)
		}
	}
	return all
}

// decode decodes a message: NFTA_TRACE_*, include/uapi/linux/netfilter/nf_tables.h.
func (t *Tracer) decode(family byte, data []byte) (e Traced, ok bool) {
	e = Traced{
		ID: uint32(nlconn.Number(data, unix.NFTA_TRACE_ID)), Family: familyText(family),
		Table: nlconn.Text(data, unix.NFTA_TRACE_TABLE), Chain: nlconn.Text(data, unix.NFTA_TRACE_CHAIN),
		Packet: decodePacket(family, data), family: family,
	}
	if e.Packet != nil {
		e.Packet.Probe = t.flow.Tag.number(e.Packet.Proto, nlconn.Attribute(data, unix.NFTA_TRACE_TRANSPORT_HEADER))
	}
	if base, ok := t.chains[chainID{family, e.Table, e.Chain}]; ok {
		e.Base = &base
	}
	if strings.HasPrefix(e.Table, tableTrace) {
		if !slices.Contains(t.tables, e.Table) { // of another trace, which may have ended just now
			return e, false
		}
		e.Base = new(BaseChain) // also where the list of chains has changed while it was read
		e.Base.Hook, e.Own, _ = strings.Cut(e.Chain, "-")
	}
	verdict := nlconn.Attribute(data, unix.NFTA_TRACE_VERDICT)
	code := uint32(nlconn.Number(verdict, unix.NFTA_VERDICT_CODE))
	switch nlconn.Number(data, unix.NFTA_TRACE_TYPE) {
	case unix.NFT_TRACETYPE_RULE:
		e.Handle = nlconn.Number(data, unix.NFTA_TRACE_RULE_HANDLE)
	case unix.NFT_TRACETYPE_POLICY:
		e.Policy, code = true, uint32(nlconn.Number(data, unix.NFTA_TRACE_POLICY))
	case unix.NFT_TRACETYPE_RETURN: // the end of a chain to which another jumps
	default:
		return e, false
	}
	e.Verdict = strings.TrimSpace(verdictText(code) + " " + nlconn.Text(verdict, unix.NFTA_VERDICT_CHAIN))
	return e, true
}

// familyText returns the family in the syntax of nft.
func familyText(family byte) string {
	switch family {
	case inet:
		return "inet"
	case v4:
		return "ip"
	case v6:
		return "ip6"
	case bridge:
		return "bridge"
	case unix.NFPROTO_NETDEV:
		return "netdev"
	case unix.NFPROTO_ARP:
		return "arp"
	}
	return fmt.Sprint("family ", family)
}

// verdictText returns the name of a verdict: NF_*, include/uapi/linux/netfilter.h, whose upper half
// has the number of a queue, or NFT_*.
func verdictText(code uint32) string {
	switch int32(code) {
	case unix.NFT_CONTINUE:
		return "continue"
	case unix.NFT_JUMP:
		return "jump"
	case unix.NFT_GOTO:
		return "goto"
	case unix.NFT_RETURN:
		return "return"
	}
	names := [...]string{"drop", "accept", "stolen", "queue"}
	if n := code & 0xff; n < uint32(len(names)) {
		return names[n]
	}
	return fmt.Sprint("verdict ", int32(code))
}

// decodePacket decodes a message's packet fields; nil: there are none, or the packet is not IP.
func decodePacket(family byte, data []byte) *Packet {
	network := nlconn.Attribute(data, unix.NFTA_TRACE_NETWORK_HEADER)
	transport := nlconn.Attribute(data, unix.NFTA_TRACE_TRANSPORT_HEADER)
	if len(network) == 0 {
		return nil
	}
	p := &Packet{
		Bridged: family == bridge,
		In:      uint32(nlconn.Number(data, unix.NFTA_TRACE_IIF)), Out: uint32(nlconn.Number(data, unix.NFTA_TRACE_OIF)),
		Mark: uint32(nlconn.Number(data, unix.NFTA_TRACE_MARK)),
	}
	var src, dst netip.Addr
	switch version := network[0] >> 4; {
	case version == 4 && len(network) >= saddr4At+2*addr4Len:
		src, dst, p.Proto = netip.AddrFrom4([4]byte(network[saddr4At:])), netip.AddrFrom4([4]byte(network[saddr4At+addr4Len:])), network[proto4At]
	case version == 6 && len(network) >= saddr6At+2*addr6Len:
		src, dst, p.Proto = netip.AddrFrom16([16]byte(network[saddr6At:])), netip.AddrFrom16([16]byte(network[saddr6At+addr6Len:])), network[proto6At]
	default:
		return nil
	}
	var ports [2]uint16
	if (p.Proto == unix.IPPROTO_TCP || p.Proto == unix.IPPROTO_UDP || p.Proto == unix.IPPROTO_SCTP) && len(transport) >= dportAt+portLen {
		ports = [2]uint16{binary.BigEndian.Uint16(transport[sportAt:]), binary.BigEndian.Uint16(transport[dportAt:])}
	}
	at, samples := sampleAt(p.Proto)
	p.sampled = samples && int(at) < len(transport) && transport[at]&sampleMask == 0
	p.Src, p.Dst = netip.AddrPortFrom(src, ports[0]), netip.AddrPortFrom(dst, ports[1])
	return p
}

// Rejects reports whether a rule rejects the packet (statement reject), and returns the rule's
// comment.
func (t *Tracer) Rejects(e Traced) (rejects bool, comment string) {
	get, err := wire.Message(wire.Tables|unix.NFT_MSG_GETRULE, 0, e.family, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_RULE_TABLE, e.Table)
		ae.String(unix.NFTA_RULE_CHAIN, e.Chain)
		ae.Uint64(unix.NFTA_RULE_HANDLE, e.Handle)
	})
	if err != nil {
		return false, ""
	}
	ms, _ := t.owner.Execute(get)
	for _, m := range ms {
		if len(m.Data) < wire.HeaderLen {
			continue
		}
		data := m.Data[wire.HeaderLen:]
		for typ, x := range nlconn.Attributes(nlconn.Attribute(data, unix.NFTA_RULE_EXPRESSIONS)) {
			rejects = rejects || typ == unix.NFTA_LIST_ELEM && nlconn.Text(x, unix.NFTA_EXPR_NAME) == "reject"
		}
		comment = nft.Comment(nlconn.Attribute(data, unix.NFTA_RULE_USERDATA))
	}
	return rejects, comment
}
