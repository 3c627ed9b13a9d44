package dhcp_test

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
	"github.com/insomniacslk/dhcp/rfc1035label"
)

var update = flag.Bool("update", false, "rewrite golden files")

// recorded is the directory of the messages in the tests of ipam/dhcp: ours, which the other
// implementation must be able to read, and those that it writes.
const recorded = "../../ipam/dhcp/testdata"

var ourMAC = net.HardwareAddr{2, 0, 0, 0, 0, 1}

// ours returns a message that we wrote.
func ours(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(recorded, "ours.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if digits, ok := strings.CutPrefix(line, name+": "); ok {
			b, err := hex.DecodeString(strings.TrimSpace(digits))
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
	}
	t.Fatalf("no message %s", name)
	return nil
}

// theirs checks that a file has the messages that the other implementation writes, one a line.
func theirs(t *testing.T, file string, messages map[string][]byte) {
	t.Helper()
	var text bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(messages)) {
		fmt.Fprintf(&text, "%s: %x\n", name, messages[name])
	}
	file = filepath.Join(recorded, file)
	if *update {
		if err := os.WriteFile(file, text.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if golden, err := os.ReadFile(file); err != nil || !bytes.Equal(golden, text.Bytes()) {
		t.Errorf("%s is not what the library writes: %v (go test -update)", file, err)
	}
}

// Another implementation reads the messages that we write.
func TestEncode4(t *testing.T) {
	got, err := dhcpv4.FromBytes(ours(t, "DHCPv4"))
	if err != nil {
		t.Fatal(err)
	}
	if got.MessageType() != dhcpv4.MessageTypeRequest || got.TransactionID != [4]byte{1, 2, 3, 4} || got.NumSeconds != 7 || !got.IsBroadcast() ||
		!got.ClientIPAddr.Equal(net.IPv4(10, 9, 0, 10)) || got.ClientHWAddr.String() != ourMAC.String() {
		t.Errorf("got %s", got.Summary())
	}
	long := bytes.Repeat([]byte("x"), 300)
	if !bytes.Equal(got.Options.Get(dhcpv4.GenericOptionCode(224)), long) || string(got.Options.Get(dhcpv4.OptionClientIdentifier)) != "\x00id" {
		t.Errorf("options: %s", got.Options)
	}
}

func TestEncode6(t *testing.T) {
	got, err := dhcpv6.MessageFromBytes(ours(t, "DHCPv6"))
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

// TestRecordedACKs has the messages that ipam/dhcp reads in TestLease4, TestLease4InvalidOptions and
// TestManyRoutes.
func TestRecordedACKs(t *testing.T) {
	gw, other := net.IPv4(10, 9, 0, 1), net.IPv4(10, 9, 0, 2)
	long := 1 << 30 * time.Second
	gen := dhcpv4.OptGeneric
	var routes, servers []byte
	for i := range 100 {
		routes = append(routes, 24, 10, 8, byte(i), 10, 9, 0, 1)
	}
	for i := range 1000 {
		servers = append(servers, 10, 9, byte(i>>8), byte(i))
	}
	acks := map[string][]byte{}
	for name, options := range map[string][]dhcpv4.Option{
		"whole": {dhcpv4.OptRouter(gw, other), dhcpv4.OptDNS(net.IPv4(10, 9, 0, 53), net.IPv4zero, net.IPv4(10, 9, 0, 53)), dhcpv4.OptDomainName("example.org"),
			dhcpv4.OptDomainSearch(&rfc1035label.Labels{Labels: []string{"a.example.org", "example.org"}}), dhcpv4.OptNTPServers(other),
			dhcpv4.OptClasslessStaticRoute(
				&dhcpv4.Route{Dest: &net.IPNet{IP: net.IPv4(10, 17, 0, 0), Mask: net.CIDRMask(20, 32)}, Router: other},
				&dhcpv4.Route{Dest: &net.IPNet{IP: net.IPv4(10, 18, 0, 0), Mask: net.CIDRMask(16, 32)}, Router: net.IPv4zero}),
			dhcpv4.OptIPAddressLeaseTime(time.Hour), dhcpv4.OptRenewTimeValue(20 * time.Minute), dhcpv4.OptRebindingTimeValue(40 * time.Minute),
			dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, []byte{5, 0})},
		"many routes":           {dhcpv4.OptGeneric(dhcpv4.OptionClasslessStaticRoute, routes)},
		"no lease time":         nil,
		"zero lease time":       {dhcpv4.OptIPAddressLeaseTime(0)},
		"for ever":              {gen(dhcpv4.OptionIPAddressLeaseTime, []byte{255, 255, 255, 255})},
		"long":                  {dhcpv4.OptIPAddressLeaseTime(long)},
		"a second":              {dhcpv4.OptIPAddressLeaseTime(time.Second)},
		"T1 behind T2":          {dhcpv4.OptRenewTimeValue(50 * time.Minute), dhcpv4.OptRebindingTimeValue(time.Minute)},
		"T1 behind the end":     {dhcpv4.OptRenewTimeValue(2 * time.Hour)},
		"short option":          {gen(dhcpv4.OptionRouter, []byte{10, 9})},
		"gateway 0.0.0.0":       {dhcpv4.OptRouter(net.IPv4zero)},
		"gateway multicast":     {dhcpv4.OptRouter(net.IPv4(224, 0, 0, 1), net.IPv4(10, 9, 0, 1))},
		"option 33":             {gen(dhcpv4.OptionStaticRoutingTable, []byte{10, 0, 0, 0, 10, 9, 0, 2, 192, 168, 1, 7, 10, 9, 0, 3, 0, 0, 0, 0, 10, 9, 0, 3}), dhcpv4.OptRouter(net.IPv4(10, 9, 0, 1))},
		"option 121 cut off":    {gen(dhcpv4.OptionClasslessStaticRoute, []byte{24, 10, 8}), dhcpv4.OptRouter(net.IPv4(10, 9, 0, 1))},
		"option 121 of 33 bits": {gen(dhcpv4.OptionClasslessStaticRoute, []byte{33, 1, 2, 3, 4, 5, 6, 7, 8, 9})},
		"giant DNS":             {gen(dhcpv4.OptionDomainNameServer, servers)},
		"MTU of 68":             {gen(dhcpv4.OptionInterfaceMTU, []byte{0, 68})},
		"MTU of 3 bytes":        {gen(dhcpv4.OptionInterfaceMTU, []byte{0, 5, 220})},
		// A line of the server's in resolv.conf would configure the resolver.
		"domain with a newline": {dhcpv4.OptDomainName("a.org\nnameserver 6.6.6.6")},
		"domain with a NUL":     {dhcpv4.OptDomainName("a.org\x00")},
		"search with a blank":   {gen(dhcpv4.OptionDNSDomainSearchList, []byte("\x05a b.c\x00\x01d\x00"))},
	} {
		m, err := dhcpv4.New(dhcpv4.WithMessageType(dhcpv4.MessageTypeAck), dhcpv4.WithTransactionID(dhcpv4.TransactionID{1, 2, 3, 4}),
			dhcpv4.WithYourIP(net.IPv4(10, 9, 0, 10)), dhcpv4.WithHwAddr(ourMAC),
			dhcpv4.WithOption(dhcpv4.OptServerIdentifier(gw)), dhcpv4.WithNetmask(net.CIDRMask(24, 32)))
		if err != nil {
			t.Fatal(err)
		}
		m.OpCode = dhcpv4.OpcodeBootReply
		for _, o := range options {
			m.UpdateOption(o)
		}
		acks[name] = m.ToBytes()
	}
	theirs(t, "acks.txt", acks)
}

// TestRecordedReplies has the messages that ipam/dhcp reads in TestLease6.
func TestRecordedReplies(t *testing.T) {
	addr := func(ip string, preferred, valid time.Duration) dhcpv6.Option {
		return &dhcpv6.OptIAAddress{IPv6Addr: net.ParseIP(ip), PreferredLifetime: preferred, ValidLifetime: valid}
	}
	status := func(code iana.StatusCode) dhcpv6.Option {
		return &dhcpv6.OptStatusCode{StatusCode: code, StatusMessage: "no"}
	}
	ia := func(id byte, options ...dhcpv6.Option) dhcpv6.Option {
		return &dhcpv6.OptIANA{IaId: [4]byte{3: id}, Options: dhcpv6.IdentityOptions{Options: options}}
	}
	replies := map[string][]byte{}
	for name, options := range map[string][]dhcpv6.Option{
		"plain":  {ia(1, addr("fd09::10", time.Minute, time.Hour))},
		"second": {ia(1, addr("fd09::10", 0, 0), addr("fd09::11", 1e9, 1e9))},
		"T1 behind T2": {&dhcpv6.OptIANA{IaId: [4]byte{3: 1}, T1: 40 * time.Second, T2: 20 * time.Second,
			Options: dhcpv6.IdentityOptions{Options: dhcpv6.Options{addr("fd09::10", 50*time.Second, 50*time.Second)}}}},
		"preferred too long": {ia(1, addr("fd09::10", time.Hour, time.Minute))},
		"lifetime 0":         {ia(1, addr("fd09::10", 0, 0))},
		"another IAID":       {ia(2, addr("fd09::10", 1e9, 1e9))},
		"none":               nil,
		"link-local":         {ia(1, addr("fe80::1", 1e9, 1e9))},
		"multicast":          {ia(1, addr("ff02::1", 1e9, 1e9))},
		"mapped":             {ia(1, addr("::ffff:10.0.0.1", 1e9, 1e9))},
		"refused":            {status(iana.StatusUnspecFail)},
		"none available":     {ia(1, status(iana.StatusNoAddrsAvail))},
	} {
		m := &dhcpv6.Message{MessageType: dhcpv6.MessageTypeReply, Options: dhcpv6.MessageOptions{Options: options}}
		m.AddOption(dhcpv6.OptDNS(net.ParseIP("fd09::53")))
		m.AddOption(dhcpv6.OptServerID(&dhcpv6.DUIDLL{HWType: 1, LinkLayerAddr: ourMAC}))
		replies[name] = m.ToBytes()
	}
	theirs(t, "replies6.txt", replies)
}
