package dhcp

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cnibox/cnibox/rtnl"
)

// secs of a REQUEST is that of the preceding DISCOVER; every other message has the elapsed time
// (RFC 2131).
func TestSecsOfRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &client4{iface: &iface{link: &rtnl.Link{MAC: ourMAC}}, Settings: &Settings{}, begin: time.Now()}
		l := &Lease{Address: netip.MustParsePrefix("10.9.0.10/24"), Server: []byte{10, 9, 0, 1}}
		for _, tt := range []struct {
			step
			want uint16
		}{{discover, 5}, {request, 5}, {discover, 15}, {request, 15}, {rebind, 25}} {
			time.Sleep(5 * time.Second)
			if m, _, err := c.nextRequest(tt.step, l); err != nil || m.secs != tt.want {
				t.Errorf("step %d: %d s, %v, want %d", tt.step, m.secs, err, tt.want)
			}
		}
	})
}

// The elapsed time of the first message of an exchange is 0 (RFC 8415).
func TestElapsedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &client6{}
		for _, kind := range []byte{solicit6, request6, solicit6} {
			for _, want := range []time.Duration{0, time.Second} {
				if m := c.message(kind, nil); m.elapsed != want {
					t.Errorf("type %d: %s, want %s", kind, m.elapsed, want)
				}
				time.Sleep(time.Second)
			}
		}
	})
}

// An answer in which an option is cut off is not taken, and is no silence: the error says why. One to another client is
// ignored.
func TestAnswerWithOptionCutOff(t *testing.T) {
	c4 := &client4{iface: &iface{link: &rtnl.Link{MAC: ourMAC}}, Settings: &Settings{}, xid: 7}
	asked := c4.message(discover4)
	answer := message4{op: opReply, xid: 7, mac: ourMAC, options: options{{optType, []byte{offer4}}, {optServer, []byte{10, 9, 0, 1}}}}
	whole := answer.encode()
	area := whole[:headerLen4+4+3+6] // both options
	for name, tt := range map[string]struct {
		packet []byte
		own    bool
	}{
		"length behind the end": {append(slices.Clip(area), optRouter, 8, 10, 9, 0, 1), true},
		"no length":             {append(slices.Clip(area), optRouter), true},
		"in the first option":   {append(area[:headerLen4+4:headerLen4+4], optType), true},
		"of another client":     {append(slices.Clip(area), optRouter), false},
	} {
		if !tt.own {
			binary.BigEndian.PutUint32(tt.packet[4:], 8)
		}
		r, err := c4.matchAnswer(asked, tt.packet, nil)
		if tt.own && (r == nil || !errors.Is(err, errShort)) || !tt.own && (r != nil || !errors.Is(err, errNotDHCP)) {
			t.Errorf("IPv4, %s: got %+v, %v", name, r, err)
		}
	}
	if r, err := c4.matchAnswer(asked, whole, nil); r == nil || err != nil {
		t.Errorf("whole: %+v, %v", r, err)
	}

	c6 := &client6{Config: Config{DUID: []byte("us")}, xid: 7}
	m := c6.message(solicit6, nil)
	head := binary.BigEndian.AppendUint32(nil, m.xid|advertise6<<24)
	server := append6(nil, opt6ServerID, []byte("server")...)
	cut := []byte{0, opt6DNS, 0, 16, 0xfd}
	for name, tt := range map[string]struct {
		options []byte
		own     bool
	}{
		"behind the identifiers": {append(append(append6(nil, opt6ClientID, c6.DUID...), server...), cut...), true},
		"before the identifier":  {append(slices.Clip(server), cut...), true},
		"no length":              {[]byte{0, opt6ClientID}, true},
		"of another client":      {append(append6(nil, opt6ClientID, []byte("them")...), cut...), false},
		"whole, to nobody":       {server, false},
	} {
		r, err := c6.matchAnswer(m, append(head[:4:4], tt.options...))
		if tt.own && (r == nil || !errors.Is(err, errShort)) || !tt.own && (r != nil || !errors.Is(err, errNotDHCP)) {
			t.Errorf("IPv6, %s: got %+v, %v", name, r, err)
		}
	}
}

// No host can have its network's own or broadcast address, or its router's. Both addresses of a /31
// are of hosts, and a /32 has neither.
func TestLease4OfAddressThatIsTaken(t *testing.T) {
	for _, tt := range []struct{ address, mask, router, want string }{
		{"10.9.0.0", "255.255.255.0", "10.9.0.1", "the network's own"},
		{"10.9.0.255", "255.255.255.0", "10.9.0.1", "the network's broadcast address"},
		{"10.9.255.255", "255.255.0.0", "", "the network's broadcast address"},
		{"10.9.0.1", "255.255.255.0", "10.9.0.1", "its router's"},
		{"10.9.0.1", "255.255.255.255", "10.9.0.1", "its router's"},
		{"10.9.0.0", "255.255.0.0", "10.9.0.1", "the network's own"},
		{"10.9.1.0", "255.255.0.0", "10.9.0.1", ""},
		{"10.9.1.255", "255.255.0.0", "10.9.0.1", ""},
		{"10.9.0.6", "255.255.255.254", "10.9.0.7", ""},
		{"10.9.0.7", "255.255.255.254", "10.9.0.6", ""},
		{"10.9.0.4", "255.255.255.252", "", "the network's own"},
		{"10.9.0.0", "255.255.255.255", "10.9.0.1", ""},
	} {
		m := &message4{op: opReply, mac: ourMAC, yours: netip.MustParseAddr(tt.address)}
		m.options = options{{optType, []byte{ack4}}, {optServer, []byte{10, 9, 0, 9}}, {optMask, netip.MustParseAddr(tt.mask).AsSlice()}}
		if tt.router != "" {
			m.options.set(optRouter, netip.MustParseAddr(tt.router).AsSlice())
		}
		l, err := lease4(m, ourMAC, 0, nil)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%+v: got %+v, %v", tt, l, err)
		}
	}
}
