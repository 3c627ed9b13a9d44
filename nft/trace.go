package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"cnibox/internal/netns"
	"cnibox/internal/nlconn"
	"cnibox/spec"
)

// A Flow selects the first packets of connections: of TCP those with SYN and without ACK, of other
// protocols all.
type Flow struct {
	Proto uint8        // unix.IPPROTO_TCP, IPPROTO_UDP or IPPROTO_SCTP; 0: any
	Src   []netip.Addr // empty: any; else of the family of Dst
	Dst   netip.Addr   // zero: any address of this host
	Port  uint16       // of the destination; 0: any
}

// The name of the tables is tableTrace with the number of the process. The flag tableOwner, which is
// NFT_TABLE_F_OWNER of include/uapi/linux/netfilter/nf_tables.h and Linux 5.12, binds a table to the
// socket that has made it: no other can change it, and it is deleted with the socket.
const (
	tableTrace = "cnibox-trace-"
	tableOwner = 1 << 1
)

// traceRate is how many packets are traced in a second: a busy port must not slow down the host.
const traceRate = 1000

// traceSpace is what messages may wait in, in bytes: a packet has some 30 of 1 KB.
const traceSpace = 4 << 20

// firstPrio is behind the one hook of br_netfilter (ip_sabotage_in) that keeps packets which a bridge
// passes up from coming to prerouting a second time.
const firstPrio = math.MinInt32 + 1

// Where fields are in the headers of TCP (RFC 9293), IPv4 and IPv6, in bytes, and bits of TCP's flags.
const (
	tcpFlagsAt      = 13
	tcpSYN, tcpACK  = 1 << 1, 1 << 4
	proto4At        = 9
	proto6At        = 6
	firstOf, lastOf = "-first", "-last"
)

// traceHooks are the hooks by number, which NF_INET_* and NF_BR_* have alike.
var traceHooks = [...]string{"prerouting", "input", "forward", "output", "postrouting"}

// A Tracer reports what nf_tables does with packets of a flow, in one network namespace. Its tables
// have a chain before and one behind all others at each hook; those before set nftrace of the packets
// where they come in (prerouting) or are sent (output).
type Tracer struct {
	nl     *nlconn.Conn // notifications
	owner  *sock        // of the tables
	chains map[chainID]BaseChain
}

// A BaseChain is where a chain is registered.
type BaseChain struct {
	Hook     string
	Priority int32
}

// Trace begins to trace a flow in ns. The caller closes the Tracer, and ns after it. Before Linux 5.12
// the error has code [spec.CodeHost]: a table without an owner would stay if the process was killed.
func Trace(ns *netns.NS, f Flow) (*Tracer, error) {
	nl, err := nlconn.Listen(ns, unix.NETLINK_NETFILTER, 1<<(unix.NFNLGRP_NFTRACE-1))
	if err != nil {
		return nil, fmt.Errorf("nft: trace messages: %w", explainUnsupported(err, ""))
	}
	nl.ReceiveSpace(traceSpace)
	owner, err := nlconn.Listen(ns, unix.NETLINK_NETFILTER, 0)
	if err != nil {
		nl.Close()
		return nil, fmt.Errorf("nft: %w", err)
	}
	t := &Tracer{nl: nl, owner: &sock{nl: owner, ns: ns}}
	err = t.addTable(inet, f)
	if err == nil {
		err = t.addTable(bridge, f)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
			err = nil // without CONFIG_NF_TABLES_BRIDGE there are no such rules to pass
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

// ownTables is what the names of this process's tables begin with.
func ownTables() string { return fmt.Sprintf("%s%d-", tableTrace, os.Getpid()) }

// tracers counts the tables of this process.
var tracers atomic.Uint32

// Close ends it. The kernel deletes the tables with the socket.
func (t *Tracer) Close() {
	t.nl.Close()
	t.owner.nl.Close()
}

// addTable makes the table of a family with its chains and rules.
func (t *Tracer) addTable(family byte, f Flow) error {
	// The kernel deletes a table with the last reference to its owner's socket, which a process that is just being
	// started may have for a moment: the next Tracer has another name.
	name := fmt.Sprint(ownTables(), tracers.Add(1))
	owned, err := message(0, 0, family, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_TABLE_NAME, name)
		ae.Uint32(unix.NFTA_TABLE_FLAGS, tableOwner)
	})
	if err != nil {
		return err
	}
	tbl := tableOf(family, name)
	what := "table " + name
	var b batch
	b.add(step{what: what, flags: netlink.Excl, data: owned.Data}).AddTable(tbl)
	for hook, hookName := range traceHooks {
		for _, end := range []struct {
			name string
			prio nftables.ChainPriority
		}{{firstOf, firstPrio}, {lastOf, math.MaxInt32}} {
			chain := &nftables.Chain{
				Table: tbl, Name: hookName + end.name, Type: nftables.ChainTypeFilter,
				Hooknum: nftables.ChainHookRef(nftables.ChainHook(hook)), Priority: &end.prio, Policy: new(nftables.ChainPolicyAccept),
			}
			b.add(step{what: "chain " + chain.Name + " of " + what}).AddChain(chain)
			if end.name == lastOf || hook != unix.NF_INET_PRE_ROUTING && hook != unix.NF_INET_LOCAL_OUT {
				continue
			}
			for _, r := range f.rules(family) {
				b.add(step{what: "rule of " + what, needs: fibNeeds + " or CONFIG_NFT_LIMIT"}).AddRule(newRule(family, name, chain.Name, r))
			}
		}
	}
	err = t.owner.commit(&b)
	var refused *batchError
	if errors.As(err, &refused) && refused.what == what && (errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)) {
		return spec.Errorf(spec.CodeHost, "%w: tracing needs Linux 5.12, whose tables can have an owner, and %s", err, inetNeeds)
	}
	return err
}

// rules set nftrace of the packets of a flow. The expression fib, which finds the addresses of the
// host, is not for bridges: what a bridge passes up to the host is traced from inet prerouting on.
func (f Flow) rules(table byte) (rules []rule) {
	families := []byte{v4, v6}
	switch {
	case f.Dst.IsValid():
		families = []byte{familyOf(f.Dst)}
	case table == bridge:
		return nil
	}
	for _, family := range families {
		r := rule{}.family(family)
		if table == bridge {
			r = rule{}.meta(expr.MetaKeyPROTOCOL, 0).equal(port16(map[byte]uint16{v4: unix.ETH_P_IP, v6: unix.ETH_P_IPV6}[family])...)
		}
		if f.Dst.IsValid() {
			r = r.addr(family, true).equal(f.Dst.AsSlice()...)
		} else {
			r = r.localDst()
		}
		if f.Proto != 0 {
			r = r.meta(expr.MetaKeyL4PROTO, 0).equal(f.Proto)
		}
		if f.Port != 0 {
			r = r.payload(expr.PayloadBaseTransportHeader, dportAt, portLen, 0).equal(port16(f.Port)...)
		}
		if f.Proto == unix.IPPROTO_TCP {
			r = r.payload(expr.PayloadBaseTransportHeader, tcpFlagsAt, 1, 0).mask([]byte{tcpSYN | tcpACK}).equal(tcpSYN)
		}
		if len(f.Src) == 0 {
			rules = append(rules, r.traced())
		}
		for _, src := range f.Src {
			rules = append(rules, append(rule{}, r...).addr(family, false).equal(src.AsSlice()...).traced())
		}
	}
	return rules
}

// traced sets nftrace, of so many packets.
func (r rule) traced() rule {
	return append(r,
		&expr.Limit{Type: expr.LimitTypePkts, Rate: traceRate, Unit: expr.LimitTimeSecond, Burst: traceRate},
		&expr.Immediate{Register: reg, Data: []byte{1}},
		&expr.Meta{Key: expr.MetaKeyNFTRACE, SourceRegister: true, Register: reg})
}

// readChains reads where the base chains of all tables are registered.
func (t *Tracer) readChains() error {
	t.chains = map[chainID]BaseChain{}
	return t.owner.dump(unix.NFT_MSG_GETCHAIN, unix.NFPROTO_UNSPEC, func(family byte, data []byte) {
		hook := nlconn.Attribute(data, unix.NFTA_CHAIN_HOOK)
		number, names := num(hook, unix.NFTA_HOOK_HOOKNUM), traceHooks[:]
		if family == unix.NFPROTO_NETDEV {
			names = []string{"ingress", "egress"}
		}
		if hook == nil || number >= uint64(len(names)) {
			return
		}
		id := chainID{family, text(data, unix.NFTA_CHAIN_TABLE), text(data, unix.NFTA_CHAIN_NAME)}
		t.chains[id] = BaseChain{names[number], int32(num(hook, unix.NFTA_HOOK_PRIORITY))}
	})
}

// A Traced is one message of the kernel about a packet: a rule that has matched, or the end of a chain.
type Traced struct {
	ID      uint32 // of the packet, in one family
	Packet  *Packet
	Family  string // of the table, in the words of nft
	Table   string
	Chain   string
	Base    *BaseChain // nil: another chain jumps to it
	Handle  uint64     // of the rule; 0: the end of the chain
	Verdict string     // "accept", "drop", "continue", "jump CHAIN", …
	Policy  bool       // the verdict is the chain's policy
	Own     string     // of the chains of this trace: "first" or "last"; of others empty

	family byte
}

// A Packet is what the first message of each base chain has of the packet.
type Packet struct {
	Bridged  bool // a rule of family bridge reports it
	Proto    uint8
	Src, Dst netip.AddrPort // port 0: none, or unknown
	In, Out  uint32         // links; 0: none
	Mark     uint32
}

// Next returns the next messages, in the kernel's order, as soon as there are some; lost reports that
// there were more than the kernel could keep. Messages about packets other than IP, and about rules of
// other traces, are left out. The error is the context's if that ends first.
func (t *Tracer) Next(ctx context.Context) (all []Traced, lost bool, err error) {
	ms, lost, err := t.nl.Notified(ctx)
	return t.decodeAll(ms), lost, err
}

// Rest returns the messages that are there, without waiting for others; lost is that of Next.
func (t *Tracer) Rest() (all []Traced, lost bool, err error) {
	for {
		ms, more, err := t.nl.Pending()
		lost = lost || more
		if err != nil || len(ms) == 0 && !more {
			return all, lost, err
		}
		all = append(all, t.decodeAll(ms)...)
	}
}

func (t *Tracer) decodeAll(ms []netlink.Message) (all []Traced) {
	for _, m := range ms {
		if m.Header.Type != nfTables|unix.NFT_MSG_TRACE || len(m.Data) < headerLen {
			continue
		}
		if e, ok := t.decode(m.Data[0], m.Data[headerLen:]); ok {
			all = append(all, e)
		}
	}
	return all
}

// decode reads a message: NFTA_TRACE_*, include/uapi/linux/netfilter/nf_tables.h.
func (t *Tracer) decode(family byte, data []byte) (e Traced, ok bool) {
	e = Traced{
		ID: uint32(num(data, unix.NFTA_TRACE_ID)), Family: familyText(family),
		Table: text(data, unix.NFTA_TRACE_TABLE), Chain: text(data, unix.NFTA_TRACE_CHAIN),
		Packet: decodePacket(family, data), family: family,
	}
	if base, ok := t.chains[chainID{family, e.Table, e.Chain}]; ok {
		e.Base = &base
	}
	if strings.HasPrefix(e.Table, tableTrace) {
		if !strings.HasPrefix(e.Table, ownTables()) {
			return e, false
		}
		_, e.Own, _ = strings.Cut(e.Chain, "-")
	}
	verdict := nlconn.Attribute(data, unix.NFTA_TRACE_VERDICT)
	code := uint32(num(verdict, unix.NFTA_VERDICT_CODE))
	switch num(data, unix.NFTA_TRACE_TYPE) {
	case unix.NFT_TRACETYPE_RULE:
		e.Handle = num(data, unix.NFTA_TRACE_RULE_HANDLE)
	case unix.NFT_TRACETYPE_POLICY:
		e.Policy, code = true, uint32(num(data, unix.NFTA_TRACE_POLICY))
	case unix.NFT_TRACETYPE_RETURN: // the end of a chain that another jumps to
	default:
		return e, false
	}
	e.Verdict = strings.TrimSpace(verdictText(code) + " " + text(verdict, unix.NFTA_VERDICT_CHAIN))
	return e, true
}

// familyText is a family in the words of nft.
func familyText(family byte) string {
	for _, f := range familyNames {
		if f.family == family {
			return f.name
		}
	}
	switch family {
	case bridge:
		return "bridge"
	case unix.NFPROTO_NETDEV:
		return "netdev"
	}
	return fmt.Sprint("family ", family)
}

// verdictText is the name of a verdict: NF_*, include/uapi/linux/netfilter.h, whose upper half has the
// number of a queue, and NFT_*.
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

// decodePacket reads what a message has of the packet; nil: nothing, or it is not an IP packet.
func decodePacket(family byte, data []byte) *Packet {
	network := nlconn.Attribute(data, unix.NFTA_TRACE_NETWORK_HEADER)
	transport := nlconn.Attribute(data, unix.NFTA_TRACE_TRANSPORT_HEADER)
	if len(network) == 0 {
		return nil
	}
	p := &Packet{
		Bridged: family == bridge,
		In:      uint32(num(data, unix.NFTA_TRACE_IIF)), Out: uint32(num(data, unix.NFTA_TRACE_OIF)),
		Mark: uint32(num(data, unix.NFTA_TRACE_MARK)),
	}
	var src, dst netip.Addr
	switch version := network[0] >> 4; {
	case version == 4 && len(network) >= daddr4At+4:
		src, dst, p.Proto = addrOf(network[saddr4At:], v4), addrOf(network[daddr4At:], v4), network[proto4At]
	case version == 6 && len(network) >= daddr6At+16:
		src, dst, p.Proto = addrOf(network[saddr6At:], v6), addrOf(network[daddr6At:], v6), network[proto6At]
	default:
		return nil
	}
	var ports [2]uint16
	if (p.Proto == unix.IPPROTO_TCP || p.Proto == unix.IPPROTO_UDP || p.Proto == unix.IPPROTO_SCTP) && len(transport) >= dportAt+portLen {
		ports = [2]uint16{binary.BigEndian.Uint16(transport[sportAt:]), binary.BigEndian.Uint16(transport[dportAt:])}
	}
	p.Src, p.Dst = netip.AddrPortFrom(src, ports[0]), netip.AddrPortFrom(dst, ports[1])
	return p
}

// Rejects reports whether a rule answers what it drops, and returns its comment.
func (t *Tracer) Rejects(e Traced) (rejects bool, comment string) {
	rules, _ := t.owner.getRules(chainID{e.family, e.Table, e.Chain}, []uint64{e.Handle})
	for i := range rules {
		for _, x := range expressions(rules[i].exprs) {
			rejects = rejects || x.name == "reject"
		}
		comment = rules[i].comment
	}
	return rejects, comment
}
