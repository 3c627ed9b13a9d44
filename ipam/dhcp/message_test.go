package dhcp

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite golden files")

var ourMAC = net.HardwareAddr{2, 0, 0, 0, 0, 1}

// messages reads a file with one message per line, its name and its bytes. The test module
// (test/dhcp) compares them with another implementation.
func messages(t *testing.T, file string) map[string][]byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	list := map[string][]byte{}
	for line := range strings.Lines(string(text)) {
		name, digits, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if list[name], err = hex.DecodeString(digits); err != nil {
			t.Fatalf("%s: %s: %v", file, name, err)
		}
	}
	return list
}

// The messages are recorded, and another implementation parses them in the test module.
func TestEncode(t *testing.T) {
	m4 := &message4{op: opRequest, xid: 0x01020304, secs: 7, broadcast: true, client: netip.MustParseAddr("10.9.0.10"), hardware: 1, mac: ourMAC}
	m4.options.set(optType, []byte{request4})
	m4.options.set(optClientID, []byte("\x00id"))
	m4.options.set(224, bytes.Repeat([]byte("x"), 300))
	m4.options.set(225, nil)
	m6 := &message6{kind: request6, xid: 0x010203, client: []byte("\x00\x040123456789abcdef"), server: []byte("\x00\x04fedcba9876543210"), elapsed: time.Second, address: netip.MustParseAddr("fd09::10")}
	if *update {
		text := fmt.Sprintf("DHCPv4: %x\nDHCPv6: %x\n", m4.encode(), m6.encode())
		if err := os.WriteFile(filepath.Join("testdata", "ours.txt"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden := messages(t, "ours.txt")
	for name, b := range map[string][]byte{"DHCPv4": m4.encode(), "DHCPv6": m6.encode()} {
		if !bytes.Equal(b, golden[name]) {
			t.Errorf("%s: got %x, want %x (go test -run Encode -update ./ipam/dhcp, then the tests of test/dhcp)", name, b, golden[name])
		}
	}
	if again, err := parse4(m4.encode()); err != nil || !bytes.Equal(again.encode(), m4.encode()) {
		t.Errorf("our own reading differs: %v", err)
	}
	if short := (&message4{op: opRequest}).encode(); len(short) != shortest4 {
		t.Errorf("%d bytes", len(short))
	}
}

func TestLease4(t *testing.T) {
	m, err := parse4(messages(t, "acks.txt")["whole"])
	if err != nil {
		t.Fatal(err)
	}
	l, err := lease4(m, ourMAC, 5, nil)
	if err != nil {
		t.Fatal(err)
	}
	if l.Address.String() != "10.9.0.10/24" || l.Gateway.String() != "10.9.0.1" || l.MTU != 1280 || l.T1 != 1200 || l.T2 != 2400 || l.Life != 3600 || l.Start != 5 {
		t.Errorf("got %+v", l)
	}
	if len(l.DNS) != 2 || l.Domain != "example.org" || !slices.Equal(l.Search, []string{"a.example.org", "example.org"}) || len(l.NTP) != 1 {
		t.Errorf("names: %+v", l)
	}
	want := []Route{{netip.MustParsePrefix("10.17.0.0/20"), netip.MustParseAddr("10.9.0.2")}, {Dst: netip.MustParsePrefix("10.18.0.0/16")}}
	if !slices.Equal(l.Routes, want) {
		t.Errorf("routes %v: option 121 excludes option 3", l.Routes)
	}
}

func TestLease4InvalidOptions(t *testing.T) {
	long := 1 << 30 * time.Second
	tests := map[string]struct {
		check func(*Lease) bool
		err   string
	}{
		"no lease time":   {func(l *Lease) bool { return l.Life == 3600 && l.T1 == 1800 && l.T2 == 3150 }, ""},
		"zero lease time": {nil, "lease time is 0"},
		"for ever":        {func(l *Lease) bool { return l.end(l.T1) == 1<<63-1 && l.end(l.Life) == 1<<63-1 }, ""},
		"long":            {func(l *Lease) bool { return l.end(l.Life) > l.Start+long/2 }, ""},
		"a second": {func(l *Lease) bool {
			return l.Life == 1 && l.T1 <= l.T2 && l.T2 <= l.Life && l.due() >= l.Start+leastPause
		}, ""},
		"T1 behind T2":      {func(l *Lease) bool { return l.T1 == 3000 && l.T2 == 3150 }, ""},
		"T1 behind the end": {func(l *Lease) bool { return l.T1 == 1800 }, ""},
		"short option":      {func(l *Lease) bool { return !l.Gateway.IsValid() && len(l.Routes) == 0 }, ""},
		"gateway 0.0.0.0":   {func(l *Lease) bool { return !l.Gateway.IsValid() && len(l.Routes) == 0 }, ""},
		"gateway multicast": {func(l *Lease) bool { return l.Gateway.String() == "10.9.0.1" }, ""},
		"option 33": {func(l *Lease) bool {
			return len(l.Routes) == 3 && l.Routes[0].Dst.String() == "10.0.0.0/8" && l.Routes[1].Dst.String() == "192.168.1.7/32" && l.Routes[2].Dst.Bits() == 0
		}, ""},
		"option 121 cut off":    {func(l *Lease) bool { return len(l.Routes) == 1 && l.Routes[0].Dst.Bits() == 0 }, ""},
		"option 121 of 33 bits": {func(l *Lease) bool { return len(l.Routes) == 0 }, ""},
		"giant DNS":             {func(l *Lease) bool { return len(l.DNS) == longestList }, ""},
		"MTU of 68":             {func(l *Lease) bool { return l.MTU == 0 }, ""},
		"MTU of 3 bytes":        {func(l *Lease) bool { return l.MTU == 0 }, ""},
		// In resolv.conf a second line could configure the resolver.
		"domain with a newline": {func(l *Lease) bool { return l.Domain == "" }, ""},
		"domain with a NUL":     {func(l *Lease) bool { return l.Domain == "a.org" }, ""},
		"search with a blank":   {func(l *Lease) bool { return slices.Equal(l.Search, []string{"d"}) }, ""},
	}
	acks := messages(t, "acks.txt")
	if len(acks) != len(tests)+2 { // two are of other tests
		t.Errorf("%d messages for %d cases", len(acks), len(tests))
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			m, err := parse4(acks[name])
			if err != nil {
				t.Fatal(err)
			}
			l, err := lease4(m, ourMAC, time.Second, nil)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil || !tt.check(l) {
				t.Errorf("got %+v, %v", l, err)
			}
		})
	}
}

// The gateway of a leased /32, which is in no network, is reached by a route on the link; another one outside its network is not.
func TestLease4RouterOutsideItsNetwork(t *testing.T) {
	for name, tt := range map[string]struct {
		mask, router string
		routes       []byte // option 121
		want         string
	}{
		"in the network":           {"\xff\xff\xff\x00", "\x0a\x09\x00\x01", nil, "0.0.0.0/0 10.9.0.1"},
		"/32":                      {"\xff\xff\xff\xff", "\x0a\x09\x00\x01", nil, "10.9.0.1/32 link, 0.0.0.0/0 10.9.0.1"},
		"outside":                  {"\xff\xff\xff\x00", "\xac\x10\x00\x01", nil, "0.0.0.0/0 172.16.0.1"},
		"two routes by it":         {"\xff\xff\xff\xff", "", []byte{0, 10, 9, 0, 1, 8, 10, 10, 9, 0, 1}, "10.9.0.1/32 link, 0.0.0.0/0 10.9.0.1, 10.0.0.0/8 10.9.0.1"},
		"the server has the route": {"\xff\xff\xff\xff", "", []byte{0, 10, 9, 0, 1, 32, 10, 9, 0, 1, 0, 0, 0, 0}, "10.9.0.1/32 link, 0.0.0.0/0 10.9.0.1"},
	} {
		m := &message4{op: opReply, mac: ourMAC, yours: netip.MustParseAddr("10.9.0.10")}
		m.options = options{{optType, []byte{ack4}}, {optServer, []byte{10, 9, 0, 9}}, {optMask, []byte(tt.mask)}}
		if tt.router != "" {
			m.options.set(optRouter, []byte(tt.router))
		}
		if tt.routes != nil {
			m.options.set(optRoutes, tt.routes)
		}
		l, err := lease4(m, ourMAC, 0, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got []string
		for _, r := range l.Routes {
			gw := "link"
			if r.GW.IsValid() {
				gw = r.GW.String()
			}
			got = append(got, r.Dst.String()+" "+gw)
		}
		if text := strings.Join(got, ", "); text != tt.want {
			t.Errorf("%s: got %s, want %s", name, text, tt.want)
		}
	}
}

// All routes of a long list are used.
func TestManyRoutes(t *testing.T) {
	m, err := parse4(messages(t, "acks.txt")["many routes"])
	if err != nil {
		t.Fatal(err)
	}
	l, err := lease4(m, ourMAC, 0, nil)
	if err != nil || len(l.Routes) != 100 {
		t.Errorf("got %d routes, %v", len(l.Routes), err)
	}
}

// Options in the fields file and sname are parsed, and parts of an option are joined (RFC 3396).
func TestOptionOverload(t *testing.T) {
	b := (&message4{op: opReply, mac: ourMAC, options: options{{optType, []byte{ack4}}, {optOverload, []byte{3}}, {optDomain, []byte("exam")}}}).encode()
	copy(b[108:], "\x0f\x08ple.org.\x00\xff") // file
	copy(b[44:], "\x1a\x02\x05\xdc\xff")      // sname
	m, err := parse4(b)
	if err != nil {
		t.Fatal(err)
	}
	if string(m.options.get(optDomain)) != "example.org." {
		t.Errorf("domain %q", m.options.get(optDomain))
	}
	if n, _ := m.options.number(optMTU); n != 1500 {
		t.Errorf("MTU %d", n)
	}
}

func TestDomainList(t *testing.T) {
	tests := map[string]struct {
		data string
		want []string
	}{
		"plain":        {"\x01a\x03org\x00", []string{"a.org"}},
		"two":          {"\x01a\x00\x01b\x00", []string{"a", "b"}},
		"pointer":      {"\x03org\x00\x01a\xc0\x00", []string{"org", "a.org"}},
		"to itself":    {"\xc0\x00", nil},
		"forward":      {"\xc0\x02\x01a\x00", nil},
		"circle":       {"\x01a\xc0\x00", nil},
		"cut off":      {"\x05ab", nil},
		"no end":       {"\x01a", nil},
		"reserved":     {"\x80a\x00", nil},
		"root":         {"\x00\x01a\x00", []string{"a"}},
		"dot in label": {"\x03a.b\x00", nil},
		"cut pointer":  {"\x01a\x00\xc0", []string{"a"}},
		"long":         {strings.Repeat("\x3f"+strings.Repeat("a", 63), 5) + "\x00", nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := domainList([]byte(tt.data)); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// A frame is parsed again; its checksums are those of RFC 1071.
func TestFrame(t *testing.T) {
	from, to := endpoint{ourMAC, netip.MustParseAddr("10.9.0.10")}, endpoint{allHosts, broadcast4()}
	for _, payload := range []string{"even", "odd"} {
		f := frame4(from, to, []byte(payload))
		ip := f[etherHeader:]
		pseudo := sum(17+uint32(len(ip)-ipHeader), ip[12:20])
		if sum(0, ip[:ipHeader]) != 0xffff || sum(uint32(pseudo), ip[ipHeader:]) != 0xffff {
			t.Error("a checksum is wrong")
		}
		ip[ipHeader+3] = clientPort4 // as from a server
		got, mac := payload4(f)
		if string(got) != payload || mac.String() != ourMAC.String() {
			t.Errorf("got %q from %s", got, mac)
		}
	}
}

func TestLease6(t *testing.T) {
	tests := map[string]string{ // address or part of the error
		"plain":              "fd09::10/128",
		"second":             "fd09::11/128",
		"T1 behind T2":       "T1 is behind",
		"preferred too long": "longer than it is valid",
		"lifetime 0":         "lease time is 0",
		"another IAID":       "no address",
		"none":               "no address",
		"link-local":         "fe80::1",
		"multicast":          "ff02::1",
		"mapped":             "10.0.0.1",
		"refused":            "status 1",
		"none available":     "status 2",
	}
	replies := messages(t, "replies6.txt")
	if len(replies) != len(tests) {
		t.Errorf("%d messages for %d cases", len(replies), len(tests))
	}
	for name, want := range tests {
		t.Run(name, func(t *testing.T) {
			r, err := parse6(replies[name])
			if err != nil {
				t.Fatal(err)
			}
			l, err := lease6(r, 0)
			switch {
			case err != nil && !strings.Contains(err.Error(), want), err == nil && l.Address.String() != want:
				t.Errorf("got %+v, %v, want %q", l, err, want)
			case err == nil && (len(l.DNS) != 1 || len(l.Server) != 10):
				t.Errorf("got %+v", l)
			case name == "plain" && (l.T1 != 30 || l.T2 != 48 || l.Life != 3600):
				t.Errorf("times %d %d %d", l.T1, l.T2, l.Life)
			}
		})
	}
}

func FuzzMessage4(f *testing.F) {
	f.Add((&message4{op: opReply, mac: ourMAC, options: options{{optType, []byte{ack4}}, {optSearch, []byte("\x01a\xc0\x00")}}}).encode())
	f.Add((&message4{op: opReply, mac: ourMAC, yours: netip.MustParseAddr("10.9.0.10"), options: options{
		{optType, []byte{ack4}}, {optServer, []byte{10, 9, 0, 1}}, {optMask, []byte{255, 255, 255, 0}}, {optRoutes, []byte{24, 10, 8, 0, 10, 9, 0, 1}}}}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parse4(b)
		if err != nil {
			return
		}
		if l, err := lease4(m, ourMAC, 0, nil); err == nil {
			checkLease(t, l)
		}
		if again, err := parse4(m.encode()); err != nil || again.kind() != m.kind() {
			t.Errorf("written and read again: %v", err)
		}
	})
}

func FuzzMessage6(f *testing.F) {
	f.Add((&message6{kind: reply6, client: []byte("c"), server: []byte("s"), address: netip.MustParseAddr("fd09::1")}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parse6(b)
		if err != nil {
			return
		}
		if l, err := lease6(m, 0); err == nil {
			checkLease(t, l)
		}
	})
}

func FuzzFrame(f *testing.F) {
	f.Add(frame4(endpoint{ourMAC, broadcast4()}, endpoint{ourMAC, broadcast4()}, []byte("x")))
	f.Fuzz(func(_ *testing.T, b []byte) { payload4(b) })
}

// checkLease requires what every lease has, whatever the server sent.
func checkLease(t *testing.T, l *Lease) {
	t.Helper()
	names := append([]string{l.Domain}, l.Search...)
	for _, n := range names {
		if strings.ContainsAny(n, " \t\r\n;#\x00") {
			t.Errorf("name %q", n)
		}
	}
	if !isHost(l.Address.Addr()) || l.Life == 0 || l.T1 > l.T2 || l.T2 > l.Life || len(l.DNS) > longestList ||
		l.MTU != 0 && l.MTU < leastMTU {
		t.Errorf("lease %+v", l)
	}
	for _, r := range l.Routes {
		if !r.Dst.IsValid() || r.Dst != r.Dst.Masked() || r.GW.IsValid() && !isHost(r.GW) {
			t.Errorf("route %+v", r)
		}
	}
}

// The format of leases on disk is that of earlier releases.
func TestLeaseMACOnDisk(t *testing.T) {
	b, err := json.Marshal(Lease{MAC: ourMAC})
	if err != nil || !strings.Contains(string(b), `"serverMAC":"AgAAAAAB"`) {
		t.Errorf("%s, %v", b, err)
	}
}
