package dhcp

import (
	"bytes"
	"encoding/json"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
	"github.com/insomniacslk/dhcp/rfc1035label"
)

var ourMAC = net.HardwareAddr{2, 0, 0, 0, 0, 1}

// What we write is what another implementation reads.
func TestEncode4(t *testing.T) {
	long := bytes.Repeat([]byte("x"), 300)
	m := &message4{op: opRequest, xid: 0x01020304, secs: 7, broadcast: true, client: netip.MustParseAddr("10.9.0.10"), hardware: 1, mac: ourMAC}
	m.options.set(optType, []byte{request4})
	m.options.set(optClientID, []byte("\x00id"))
	m.options.set(224, long)
	m.options.set(225, nil)
	b := m.encode()
	got, err := dhcpv4.FromBytes(b)
	if err != nil {
		t.Fatal(err)
	}
	if got.MessageType() != dhcpv4.MessageTypeRequest || got.TransactionID != [4]byte{1, 2, 3, 4} || got.NumSeconds != 7 || !got.IsBroadcast() ||
		!got.ClientIPAddr.Equal(net.IPv4(10, 9, 0, 10)) || got.ClientHWAddr.String() != ourMAC.String() {
		t.Errorf("got %s", got.Summary())
	}
	if !bytes.Equal(got.Options.Get(dhcpv4.GenericOptionCode(224)), long) || string(got.Options.Get(dhcpv4.OptionClientIdentifier)) != "\x00id" {
		t.Errorf("options: %s", got.Options)
	}
	if again, err := parse4(b); err != nil || !bytes.Equal(again.encode(), b) {
		t.Errorf("our own reading differs: %v", err)
	}
	if short := (&message4{op: opRequest}).encode(); len(short) != shortest4 {
		t.Errorf("%d bytes", len(short))
	}
}

// ackOf is what another implementation writes as an ACK.
func ackOf(t *testing.T, options ...dhcpv4.Option) *message4 {
	t.Helper()
	m, err := dhcpv4.New(dhcpv4.WithMessageType(dhcpv4.MessageTypeAck), dhcpv4.WithYourIP(net.IPv4(10, 9, 0, 10)), dhcpv4.WithHwAddr(net.HardwareAddr(ourMAC)),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(10, 9, 0, 1))), dhcpv4.WithNetmask(net.CIDRMask(24, 32)))
	if err != nil {
		t.Fatal(err)
	}
	m.OpCode = dhcpv4.OpcodeBootReply
	for _, o := range options {
		m.UpdateOption(o)
	}
	got, err := parse4(m.ToBytes())
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestLease4(t *testing.T) {
	gw, other := net.IPv4(10, 9, 0, 1), net.IPv4(10, 9, 0, 2)
	classless := dhcpv4.OptClasslessStaticRoute(
		&dhcpv4.Route{Dest: &net.IPNet{IP: net.IPv4(10, 17, 0, 0), Mask: net.CIDRMask(20, 32)}, Router: other},
		&dhcpv4.Route{Dest: &net.IPNet{IP: net.IPv4(10, 18, 0, 0), Mask: net.CIDRMask(16, 32)}, Router: net.IPv4zero})
	m := ackOf(t, dhcpv4.OptRouter(gw, other), dhcpv4.OptDNS(net.IPv4(10, 9, 0, 53), net.IPv4zero, net.IPv4(10, 9, 0, 53)), dhcpv4.OptDomainName("example.org"),
		dhcpv4.OptDomainSearch(&rfc1035label.Labels{Labels: []string{"a.example.org", "example.org"}}), dhcpv4.OptNTPServers(other), classless,
		dhcpv4.OptIPAddressLeaseTime(time.Hour), dhcpv4.OptRenewTimeValue(20*time.Minute), dhcpv4.OptRebindingTimeValue(40*time.Minute),
		dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, []byte{5, 0}))
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

func TestLease4Odd(t *testing.T) {
	long := 1 << 30 * time.Second
	gen := dhcpv4.OptGeneric
	tests := map[string]struct {
		options []dhcpv4.Option
		check   func(*Lease) bool
		err     string
	}{
		"no lease time":   {nil, func(l *Lease) bool { return l.Life == 3600 && l.T1 == 1800 && l.T2 == 3150 }, ""},
		"zero lease time": {[]dhcpv4.Option{dhcpv4.OptIPAddressLeaseTime(0)}, nil, "lease time is 0"},
		"for ever":        {[]dhcpv4.Option{gen(dhcpv4.OptionIPAddressLeaseTime, []byte{255, 255, 255, 255})}, func(l *Lease) bool { return l.end(l.T1) == 1<<63-1 && l.end(l.Life) == 1<<63-1 }, ""},
		"long":            {[]dhcpv4.Option{dhcpv4.OptIPAddressLeaseTime(long)}, func(l *Lease) bool { return l.end(l.Life) > l.Start+long/2 }, ""},
		"a second": {[]dhcpv4.Option{dhcpv4.OptIPAddressLeaseTime(time.Second)}, func(l *Lease) bool {
			return l.Life == 1 && l.T1 <= l.T2 && l.T2 <= l.Life && l.due() >= l.Start+leastPause
		}, ""},
		"T1 behind T2":      {[]dhcpv4.Option{dhcpv4.OptRenewTimeValue(50 * time.Minute), dhcpv4.OptRebindingTimeValue(time.Minute)}, func(l *Lease) bool { return l.T1 == 3000 && l.T2 == 3150 }, ""},
		"T1 behind the end": {[]dhcpv4.Option{dhcpv4.OptRenewTimeValue(2 * time.Hour)}, func(l *Lease) bool { return l.T1 == 1800 }, ""},
		"short option":      {[]dhcpv4.Option{gen(dhcpv4.OptionRouter, []byte{10, 9})}, func(l *Lease) bool { return !l.Gateway.IsValid() && len(l.Routes) == 0 }, ""},
		"gateway 0.0.0.0":   {[]dhcpv4.Option{dhcpv4.OptRouter(net.IPv4zero)}, func(l *Lease) bool { return !l.Gateway.IsValid() && len(l.Routes) == 0 }, ""},
		"gateway multicast": {[]dhcpv4.Option{dhcpv4.OptRouter(net.IPv4(224, 0, 0, 1), net.IPv4(10, 9, 0, 1))}, func(l *Lease) bool { return l.Gateway.String() == "10.9.0.1" }, ""},
		"option 33": {[]dhcpv4.Option{gen(dhcpv4.OptionStaticRoutingTable, []byte{10, 0, 0, 0, 10, 9, 0, 2, 192, 168, 1, 7, 10, 9, 0, 3, 0, 0, 0, 0, 10, 9, 0, 3}), dhcpv4.OptRouter(net.IPv4(10, 9, 0, 1))},
			func(l *Lease) bool {
				return len(l.Routes) == 3 && l.Routes[0].Dst.String() == "10.0.0.0/8" && l.Routes[1].Dst.String() == "192.168.1.7/32" && l.Routes[2].Dst.Bits() == 0
			}, ""},
		"option 121 cut off": {[]dhcpv4.Option{gen(dhcpv4.OptionClasslessStaticRoute, []byte{24, 10, 8}), dhcpv4.OptRouter(net.IPv4(10, 9, 0, 1))},
			func(l *Lease) bool { return len(l.Routes) == 1 && l.Routes[0].Dst.Bits() == 0 }, ""},
		"option 121 of 33 bits": {[]dhcpv4.Option{gen(dhcpv4.OptionClasslessStaticRoute, []byte{33, 1, 2, 3, 4, 5, 6, 7, 8, 9})}, func(l *Lease) bool { return len(l.Routes) == 0 }, ""},
		"giant DNS":             {[]dhcpv4.Option{gen(dhcpv4.OptionDomainNameServer, giantList())}, func(l *Lease) bool { return len(l.DNS) == longestList }, ""},
		"MTU of 68":             {[]dhcpv4.Option{gen(dhcpv4.OptionInterfaceMTU, []byte{0, 68})}, func(l *Lease) bool { return l.MTU == 0 }, ""},
		"MTU of 3 bytes":        {[]dhcpv4.Option{gen(dhcpv4.OptionInterfaceMTU, []byte{0, 5, 220})}, func(l *Lease) bool { return l.MTU == 0 }, ""},
		// A line of the server's in resolv.conf would be an order to the resolver.
		"domain with a newline": {[]dhcpv4.Option{dhcpv4.OptDomainName("a.org\nnameserver 6.6.6.6")}, func(l *Lease) bool { return l.Domain == "" }, ""},
		"domain with a NUL":     {[]dhcpv4.Option{dhcpv4.OptDomainName("a.org\x00")}, func(l *Lease) bool { return l.Domain == "a.org" }, ""},
		"search with a blank":   {[]dhcpv4.Option{gen(dhcpv4.OptionDNSDomainSearchList, []byte("\x05a b.c\x00\x01d\x00"))}, func(l *Lease) bool { return slices.Equal(l.Search, []string{"d"}) }, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			l, err := lease4(ackOf(t, tt.options...), ourMAC, time.Second, nil)
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

// All routes of a long list are taken.
func TestManyRoutes(t *testing.T) {
	var list []byte
	for i := range 100 {
		list = append(list, 24, 10, 8, byte(i), 10, 9, 0, 1)
	}
	l, err := lease4(ackOf(t, dhcpv4.OptGeneric(dhcpv4.OptionClasslessStaticRoute, list)), ourMAC, 0, nil)
	if err != nil || len(l.Routes) != 100 {
		t.Errorf("got %d routes, %v", len(l.Routes), err)
	}
}

func giantList() (b []byte) {
	for i := range 1000 {
		b = append(b, 10, 9, byte(i>>8), byte(i))
	}
	return b
}

// Options in the fields file and sname count, and parts of one code are joined.
func TestOverload(t *testing.T) {
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

// A frame that we make is read back; its checksums are those of RFC 1071.
func TestFrame(t *testing.T) {
	from, to := endpoint{ourMAC, netip.MustParseAddr("10.9.0.10")}, endpoint{allHosts, everyone4}
	for _, payload := range []string{"even", "odd"} {
		f := frame4(from, to, []byte(payload))
		ip := f[etherHeader:]
		pseudo := sum(17+uint32(len(ip)-ipHeader), ip[12:20])
		if sum(0, ip[:ipHeader]) != 0xffff || sum(uint32(pseudo), ip[ipHeader:]) != 0xffff {
			t.Error("a checksum is wrong")
		}
		ip[ipHeader+3] = clientPort4 // as if a server had sent it
		got, mac := payload4(f)
		if string(got) != payload || mac.String() != ourMAC.String() {
			t.Errorf("got %q from %s", got, mac)
		}
	}
}

func TestMessage6(t *testing.T) {
	m := &message6{kind: request6, xid: 0x010203, client: []byte("\x00\x040123456789abcdef"), server: []byte("\x00\x04fedcba9876543210"), elapsed: time.Second, address: netip.MustParseAddr("fd09::10")}
	got, err := dhcpv6.MessageFromBytes(m.encode())
	if err != nil {
		t.Fatal(err)
	}
	ia := got.Options.OneIANA()
	if got.MessageType != dhcpv6.MessageTypeRequest || got.TransactionID != [3]byte{1, 2, 3} || got.Options.ElapsedTime() != time.Second ||
		ia == nil || ia.Options.OneAddress() == nil || ia.Options.OneAddress().IPv6Addr.String() != "fd09::10" {
		t.Errorf("got %s", got.Summary())
	}
	if !got.IsOptionRequested(dhcpv6.OptionDNSRecursiveNameServer) || !got.IsOptionRequested(dhcpv6.OptionSolMaxRT) || !got.IsOptionRequested(dhcpv6.OptionDomainSearchList) {
		t.Errorf("asks for %v", got.Options.RequestedOptions())
	}
}

func TestLease6(t *testing.T) {
	addr := func(ip string, preferred, valid time.Duration) dhcpv6.Option {
		return &dhcpv6.OptIAAddress{IPv6Addr: net.ParseIP(ip), PreferredLifetime: preferred, ValidLifetime: valid}
	}
	status := func(code iana.StatusCode) dhcpv6.Option {
		return &dhcpv6.OptStatusCode{StatusCode: code, StatusMessage: "no"}
	}
	ia := func(id byte, options ...dhcpv6.Option) dhcpv6.Option {
		return &dhcpv6.OptIANA{IaId: [4]byte{3: id}, Options: dhcpv6.IdentityOptions{Options: options}}
	}
	tests := map[string]struct {
		options []dhcpv6.Option
		want    string // address, or a part of the error
	}{
		"plain":  {[]dhcpv6.Option{ia(1, addr("fd09::10", time.Minute, time.Hour))}, "fd09::10/128"},
		"second": {[]dhcpv6.Option{ia(1, addr("fd09::10", 0, 0), addr("fd09::11", 1e9, 1e9))}, "fd09::11/128"},
		"T1 behind T2": {[]dhcpv6.Option{&dhcpv6.OptIANA{IaId: [4]byte{3: 1}, T1: 40 * time.Second, T2: 20 * time.Second,
			Options: dhcpv6.IdentityOptions{Options: dhcpv6.Options{addr("fd09::10", 50*time.Second, 50*time.Second)}}}}, "T1 is behind"},
		"preferred too long": {[]dhcpv6.Option{ia(1, addr("fd09::10", time.Hour, time.Minute))}, "longer than it is valid"},
		"lifetime 0":         {[]dhcpv6.Option{ia(1, addr("fd09::10", 0, 0))}, "lease time is 0"},
		"another IAID":       {[]dhcpv6.Option{ia(2, addr("fd09::10", 1e9, 1e9))}, "no address"},
		"none":               {nil, "no address"},
		"link-local":         {[]dhcpv6.Option{ia(1, addr("fe80::1", 1e9, 1e9))}, "fe80::1"},
		"multicast":          {[]dhcpv6.Option{ia(1, addr("ff02::1", 1e9, 1e9))}, "ff02::1"},
		"mapped":             {[]dhcpv6.Option{ia(1, addr("::ffff:10.0.0.1", 1e9, 1e9))}, "10.0.0.1"},
		"refused":            {[]dhcpv6.Option{status(iana.StatusUnspecFail)}, "status 1"},
		"none available":     {[]dhcpv6.Option{ia(1, status(iana.StatusNoAddrsAvail))}, "status 2"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			m := &dhcpv6.Message{MessageType: dhcpv6.MessageTypeReply, Options: dhcpv6.MessageOptions{Options: tt.options}}
			m.AddOption(dhcpv6.OptDNS(net.ParseIP("fd09::53")))
			m.AddOption(dhcpv6.OptServerID(&dhcpv6.DUIDLL{HWType: 1, LinkLayerAddr: net.HardwareAddr(ourMAC)}))
			r, err := parse6(m.ToBytes())
			if err != nil {
				t.Fatal(err)
			}
			l, err := lease6(r, 0)
			switch {
			case err != nil && !strings.Contains(err.Error(), tt.want), err == nil && l.Address.String() != tt.want:
				t.Errorf("got %+v, %v, want %q", l, err, tt.want)
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
	f.Add(frame4(endpoint{ourMAC, everyone4}, endpoint{ourMAC, everyone4}, []byte("x")))
	f.Fuzz(func(_ *testing.T, b []byte) { payload4(b) })
}

// checkLease wants what every lease has, whatever a server said.
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

// A daemon reads the leases that an earlier revision wrote.
func TestLeaseMACOnDisk(t *testing.T) {
	b, err := json.Marshal(Lease{MAC: ourMAC})
	if err != nil || !strings.Contains(string(b), `"serverMAC":"AgAAAAAB"`) {
		t.Errorf("%s, %v", b, err)
	}
}
