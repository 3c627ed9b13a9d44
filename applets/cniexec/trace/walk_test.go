package trace

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/nft/foreign"
)

// message parses a trace message: "ID FAMILY TABLE CHAIN HOOK HANDLE VERDICT" and optionally the
// packet, "SRC>DST". The tracer's own table is "own".
func message(t *testing.T, text string) foreign.Traced {
	t.Helper()
	var packet string
	e := foreign.Traced{Base: new(foreign.BaseChain)}
	if _, err := fmt.Sscan(text+" -", &e.ID, &e.Family, &e.Table, &e.Chain, &e.Base.Hook, &e.Handle, &e.Verdict, &packet); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if e.Table == "own" {
		e.Own = e.Chain
	}
	if e.Base.Hook == "-" {
		e.Base = nil
	}
	if src, dst, ok := strings.Cut(packet, ">"); ok {
		e.Packet = &foreign.Packet{Proto: 6, Src: netip.MustParseAddrPort(src), Dst: netip.MustParseAddrPort(dst), Bridged: e.Family == "bridge"}
	}
	return e
}

// text formats a way: each hook with its rules that decided something, and whether the packet
// passed it.
func (w way) text() (list []string) {
	for _, h := range w.hooks {
		text := h.name
		for _, r := range h.rules {
			if !r.passes() {
				text += " " + strings.TrimSpace(fmt.Sprintf("%s/%s/%d %s %s", r.Table, r.Chain, r.Handle, r.Verdict, r.NAT))
			}
		}
		if h.passed {
			text += " passed"
		}
		list = append(list, text)
	}
	if w.dropped != nil {
		list = append(list, "dropped by "+w.dropped.Table)
	}
	return list
}

func TestWalk(t *testing.T) {
	const flow, translated = "192.0.2.9:4000>192.0.2.2:8080", "192.0.2.9:4000>10.90.0.2:80"
	tests := map[string]struct {
		from     string // packet to follow; "": the first one
		messages []string
		want     []string
	}{
		"nothing": {},
		"translated by the rule that accepts last": {messages: []string{
			"1 inet own first prerouting 7 continue " + flow,
			"1 inet own first prerouting 0 accept",
			"1 ip hj pre prerouting 4 jump " + flow, "1 ip hj sub - 5 accept",
			"1 inet own last prerouting 0 accept " + translated,
		}, want: []string{"prerouting hj/pre/4 jump hj/sub/5 accept dnat to 10.90.0.2:80 passed"}},
		"translated without a rule": {messages: []string{
			"1 inet own first prerouting 7 continue " + flow,
			"1 inet own last prerouting 0 accept " + translated,
		}, want: []string{"prerouting //0  dnat to 10.90.0.2:80 passed"}},
		"dropped, and what follows is another packet": {messages: []string{
			"1 inet own first forward 7 continue " + flow,
			"1 ip filter FORWARD forward 0 drop " + flow,
			"2 inet own first forward 7 continue " + flow,
			"2 inet own last forward 0 accept " + flow,
		}, want: []string{"forward filter/FORWARD/0 drop", "dropped by filter"}},
		"sent again": {messages: []string{
			"1 inet own first prerouting 7 continue " + flow,
			"1 inet own last prerouting 0 accept " + flow,
			"1 inet own first prerouting 7 continue " + flow,
			"1 inet own first forward 0 accept " + flow,
		}, want: []string{"prerouting passed"}},
		"others between": {messages: []string{
			"9 inet own last forward 0 accept 192.0.2.8:1>192.0.2.2:8080", // of another tracer
			"1 inet own first prerouting 7 continue " + flow,
			"2 inet own first prerouting 7 continue 192.0.2.8:1>192.0.2.2:8080",
			"2 ip filter PRE prerouting 0 drop 192.0.2.8:1>192.0.2.2:8080",
			"1 inet own last prerouting 0 accept " + flow,
		}, want: []string{"prerouting passed"}},
		"another ID behind a bridge": {messages: []string{
			"1 bridge own first prerouting 7 continue " + flow,
			"1 bridge own last prerouting 0 accept " + flow,
			"2 inet own first prerouting 0 accept " + flow,
			"2 inet own last prerouting 0 accept " + translated,
			"2 inet own first forward 0 accept " + translated,
		}, want: []string{"bridge prerouting passed", "prerouting //0  dnat to 10.90.0.2:80 passed", "forward"}},
		"called by br_netfilter within a hook of the bridge": {messages: []string{
			"1 bridge own first prerouting 7 continue " + flow,
			"1 inet own first prerouting 0 accept " + flow,
			"1 ip hj pre prerouting 4 accept " + flow,
			"1 inet own last prerouting 0 accept " + translated,
			"1 bridge own last prerouting 0 accept " + translated,
		}, want: []string{"bridge prerouting passed", "prerouting hj/pre/4 accept dnat to 10.90.0.2:80 passed"}},
		"one from another namespace": {from: translated, messages: []string{
			"3 inet own first prerouting 7 continue " + flow,
			"4 inet own first prerouting 7 continue " + translated,
			"4 inet own last prerouting 0 accept " + translated,
		}, want: []string{"prerouting passed"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var events []foreign.Traced
			for _, text := range tt.messages {
				events = append(events, message(t, text))
			}
			var from *foreign.Packet
			if tt.from != "" {
				from = message(t, "0 - - - - 0 - "+tt.from).Packet
			}
			if got := walk(events, from).text(); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// Until the packet comes, the last maxAhead messages remain, since they may be about it.
func TestForgetBeforePacket(t *testing.T) {
	f := &follower{events: [][]foreign.Traced{make([]foreign.Traced, 3), make([]foreign.Traced, maxAhead+500), make([]foreign.Traced, 5)}}
	f.events[1][maxAhead+499].ID = 7
	f.forget()
	if len(f.events[0]) != 0 || len(f.events[1]) != maxAhead || f.events[1][maxAhead-1].ID != 7 || len(f.events[2]) != 5 {
		t.Errorf("%d, %d and %d messages are left", len(f.events[0]), len(f.events[1]), len(f.events[2]))
	}
}
