package foreign

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/nft/internal/wire"
)

// traceMessage returns the data of a trace message: NFTA_TRACE_* attributes.
func traceMessage(t testing.TB, table string, typ uint32, more func(ae *netlink.AttributeEncoder)) []byte {
	t.Helper()
	m, err := wire.Message(0, 0, 0, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_TRACE_TABLE, table)
		ae.String(unix.NFTA_TRACE_CHAIN, "forward-first")
		ae.Uint32(unix.NFTA_TRACE_TYPE, typ)
		ae.Uint32(unix.NFTA_TRACE_ID, 7)
		more(ae)
	})
	if err != nil {
		t.Fatal(err)
	}
	return m.Data[wire.HeaderLen:]
}

// verdict encodes the verdict of a rule.
func verdict(code int32, chain string) func(ae *netlink.AttributeEncoder) {
	return func(ae *netlink.AttributeEncoder) {
		ae.Uint64(unix.NFTA_TRACE_RULE_HANDLE, 5)
		ae.Nested(unix.NFTA_TRACE_VERDICT, func(ae *netlink.AttributeEncoder) error {
			ae.Uint32(unix.NFTA_VERDICT_CODE, uint32(code))
			if chain != "" {
				ae.String(unix.NFTA_VERDICT_CHAIN, chain)
			}
			return nil
		})
	}
}

func TestTraceDecode(t *testing.T) {
	none := func(*netlink.AttributeEncoder) {}
	own, before := fmt.Sprint(tableTrace, os.Getpid(), "-2"), fmt.Sprint(tableTrace, os.Getpid(), "-1")
	tests := map[string]struct {
		table string
		typ   uint32
		more  func(ae *netlink.AttributeEncoder)
		want  string // handle, verdict, Policy, Own; "": ignored
	}{
		"jump":         {"fw", unix.NFT_TRACETYPE_RULE, verdict(unix.NFT_JUMP, "sub"), "5 jump sub false "},
		"continue":     {"fw", unix.NFT_TRACETYPE_RULE, verdict(unix.NFT_CONTINUE, ""), "5 continue false "},
		"drop":         {"fw", unix.NFT_TRACETYPE_RULE, verdict(0, ""), "5 drop false "},
		"queue 3":      {"fw", unix.NFT_TRACETYPE_RULE, verdict(3<<16|3, ""), "5 queue false "},
		"return":       {"fw", unix.NFT_TRACETYPE_RETURN, verdict(unix.NFT_RETURN, ""), "0 return false "},
		"policy":       {"fw", unix.NFT_TRACETYPE_POLICY, func(ae *netlink.AttributeEncoder) { ae.Uint32(unix.NFTA_TRACE_POLICY, 1) }, "0 accept true "},
		"own":          {own, unix.NFT_TRACETYPE_POLICY, func(ae *netlink.AttributeEncoder) { ae.Uint32(unix.NFTA_TRACE_POLICY, 1) }, "0 accept true first"},
		"trace before": {before, unix.NFT_TRACETYPE_POLICY, none, ""},
		"of another":   {tableTrace + "x", unix.NFT_TRACETYPE_POLICY, none, ""},
		"new type":     {"fw", 9, none, ""},
		"new verdict":  {"fw", unix.NFT_TRACETYPE_RULE, verdict(-99, ""), "5 verdict -99 false "},
	}
	for name, tt := range tests {
		e, ok := (&Tracer{tables: []string{own}}).decode(inet, traceMessage(t, tt.table, tt.typ, tt.more))
		got := fmt.Sprint(e.Handle, " ", e.Verdict, " ", e.Policy, " ", e.Own)
		if ok != (tt.want != "") || ok && (got != tt.want || e.ID != 7 || e.Family != "inet") {
			t.Errorf("%s: got %q, %t, want %q", name, got, ok, tt.want)
		}
	}
}

// The kernel may truncate the headers of a packet.
func TestTracePacket(t *testing.T) {
	four := make([]byte, 20)
	four[0], four[proto4At] = 0x45, unix.IPPROTO_UDP
	copy(four[saddr4At:], []byte{192, 0, 2, 9, 10, 0, 0, 2})
	six := make([]byte, 40)
	six[0], six[proto6At] = 0x60, unix.IPPROTO_TCP
	copy(six[saddr6At:], netip.MustParseAddr("fd00::9").AsSlice())
	copy(six[saddr6At+addr6Len:], netip.MustParseAddr("fd00::2").AsSlice())
	ports := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, 4000), 53)
	for name, tt := range map[string]struct {
		network, transport []byte
		want               string // "": no packet
	}{
		"IPv4":     {four, ports, "192.0.2.9:4000 10.0.0.2:53 17"},
		"IPv6":     {six, ports, "[fd00::9]:4000 [fd00::2]:53 6"},
		"no ports": {four, nil, "192.0.2.9:0 10.0.0.2:0 17"},
		"cut":      {four[:19], ports, ""},
		"cut IPv6": {six[:39], ports, ""},
		"no IP":    {[]byte{0x00, 1}, nil, ""},
		"nothing":  {nil, nil, ""},
	} {
		data := traceMessage(t, "fw", unix.NFT_TRACETYPE_RULE, func(ae *netlink.AttributeEncoder) {
			ae.Bytes(unix.NFTA_TRACE_NETWORK_HEADER, tt.network)
			ae.Bytes(unix.NFTA_TRACE_TRANSPORT_HEADER, tt.transport)
			ae.Uint32(unix.NFTA_TRACE_IIF, 3)
			ae.Uint32(unix.NFTA_TRACE_OIF, 4)
		})
		p := decodePacket(bridge, data)
		got := ""
		if p != nil {
			got = fmt.Sprint(p.Src, p.Dst, p.Proto)
			if p.In != 3 || p.Out != 4 || !p.Bridged {
				t.Errorf("%s: got %+v", name, p)
			}
		}
		if got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}

func FuzzTraceDecode(f *testing.F) {
	f.Add(byte(inet), traceMessage(f, "fw", unix.NFT_TRACETYPE_RULE, verdict(unix.NFT_JUMP, "sub")))
	f.Fuzz(func(_ *testing.T, family byte, data []byte) { new(Tracer).decode(family, data) })
}

// A tracer may have missed packets once it has traced as many as its rules let pass, or messages were lost.
func TestTracerMisses(t *testing.T) {
	sampled, other := &Packet{sampled: true}, &Packet{}
	tracer := &Tracer{flow: Flow{Proto: unix.IPPROTO_TCP}, counts: map[traceLimit]traceCount{}}
	want := func(when string, sampledToo, others bool) {
		t.Helper()
		if tracer.Misses(sampled) != sampledToo || tracer.Misses(other) != others {
			t.Errorf("%s: %t, %t; want %t, %t", when, tracer.Misses(sampled), tracer.Misses(other), sampledToo, others)
		}
	}
	want("nothing has come", false, false)
	first := func(p *Packet, n int) {
		for range n {
			tracer.count(&Traced{Own: ownFirst, Handle: 7, Packet: p})
		}
	}
	first(other, otherRate-1)
	want("below the limit", false, false)
	tracer.count(&Traced{Own: ownFirst, Handle: 8, Packet: other})
	want("another rule", false, false)
	first(other, 1)
	want("at the limit", false, true)
	first(sampled, sampleRate)
	want("at both limits", true, true)
	tracer.counts, tracer.behind = map[traceLimit]traceCount{}, true
	want("messages were lost before", false, true)
	tracer.behind, tracer.lost = false, true
	want("messages were lost", true, true)
	tracer.lost, tracer.flow.Proto = false, 0
	first(sampled, otherRate)
	want("any protocol", true, true)
}
