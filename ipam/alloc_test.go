package ipam_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/ipam"
	"github.com/cnibox/cnibox/spec"
)

// oneRange returns a set with one range.
func oneRange(subnet, start, end string) ipam.RangeSet {
	return ipam.RangeSet{{Subnet: netip.MustParsePrefix(subnet), Start: parse(start), End: parse(end)}}
}

// parse parses an address; the empty string is the zero Addr.
func parse(s string) netip.Addr {
	a, _ := netip.ParseAddr(s)
	return a
}

func TestComplete(t *testing.T) {
	with := func(subnet, start, end, gw string) []ipam.RangeSet {
		p, _ := netip.ParsePrefix(subnet)
		return []ipam.RangeSet{{{Subnet: p, Start: parse(start), End: parse(end), Gateway: parse(gw)}}}
	}
	tests := map[string]struct {
		sets []ipam.RangeSet
		want string // the ranges, or part of the error
	}{
		"v4":              {with("10.1.2.0/24", "", "", ""), "10.1.2.1-10.1.2.254 gw 10.1.2.1"},
		"v6":              {with("2001:db8:1::/64", "", "", ""), "2001:db8:1::1-2001:db8:1:0:ffff:ffff:ffff:ffff gw 2001:db8:1::1"},
		"whole v6":        {with("::/0", "", "", ""), "::1-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff gw ::1"},
		"whole v4":        {with("0.0.0.0/0", "", "", ""), "0.0.0.1-255.255.255.254 gw 0.0.0.1"},
		"/30":             {with("10.1.2.4/30", "", "", ""), "10.1.2.5-10.1.2.6 gw 10.1.2.5"},
		"/126":            {with("fd00::4/126", "", "", ""), "fd00::5-fd00::7 gw fd00::5"},
		"start, end":      {with("10.1.2.0/24", "10.1.2.50", "10.1.2.60", ""), "10.1.2.50-10.1.2.60 gw 10.1.2.1"},
		"mapped start":    {with("10.1.2.0/24", "::ffff:10.1.2.50", "", ""), "10.1.2.50-10.1.2.254 gw 10.1.2.1"},
		"gateway outside": {with("10.1.2.0/24", "", "", "10.9.9.9"), "10.1.2.1-10.1.2.254 gw 10.9.9.9"},
		"one address":     {with("10.1.2.0/24", "10.1.2.5", "10.1.2.5", ""), "10.1.2.5-10.1.2.5 gw 10.1.2.1"},
		"broadcast":       {with("10.1.2.0/29", "", "10.1.2.7", ""), "10.1.2.1-10.1.2.6 gw 10.1.2.1"},
		"network":         {with("10.1.2.0/29", "10.1.2.0", "", "10.1.2.6"), "10.1.2.1-10.1.2.6 gw 10.1.2.6"},
		"whole v6 subnet": {with("fd00::/64", "fd00::", "fd00::ffff:ffff:ffff:ffff", "fd00::1"), "fd00::1-fd00::ffff:ffff:ffff:ffff gw fd00::1"},
		"v6 network":      {with("fd00::4/126", "fd00::4", "", "fd00::7"), "fd00::5-fd00::7 gw fd00::7"},
		"v6 alone":        {with("fd00::/64", "fd00::", "fd00::", ""), `no container can have an address of fd00::-fd00::; "rangeStart" must be from fd00::1 to fd00::ffff:ffff:ffff:ffff`},
		"v6 gateway":      {with("fd00::/64", "fd00::", "", "fd00::"), "fd00::1-fd00::ffff:ffff:ffff:ffff gw fd00::"},
		"last v6 gateway": {with("fd00::/126", "", "", "fd00::3"), "fd00::1-fd00::3 gw fd00::3"},
		"no gateway":      {with("10.1.2.0/24", "", "", "0.0.0.0"), "10.1.2.1-10.1.2.254 gw 0.0.0.0"},
		"broadcast alone": {with("10.1.2.0/29", "10.1.2.7", "10.1.2.7", ""), `invalid range set 0: no container can have an address of 10.1.2.7-10.1.2.7; "rangeStart" must be from 10.1.2.1 to 10.1.2.6, and "rangeEnd" not before it`},
		"network alone":   {with("10.1.2.0/29", "10.1.2.0", "10.1.2.0", ""), "invalid range set 0: no container can have an address of 10.1.2.0-10.1.2.0"},
		"gateway alone":   {with("10.1.2.0/29", "10.1.2.2", "10.1.2.2", "10.1.2.2"), "invalid range set 0: 10.1.2.2-10.1.2.2 has no address but gateways"},
		"gateways alone": {[]ipam.RangeSet{oneRange("10.1.2.0/24", "", "10.1.2.9"), {{Subnet: netip.MustParsePrefix("10.1.3.0/24"), Start: parse("10.1.3.7"), End: parse("10.1.3.8"), Gateway: parse("10.1.3.7")}},
			{{Subnet: netip.MustParsePrefix("10.1.4.0/24"), Gateway: parse("10.1.3.8")}}}, "invalid range set 1: 10.1.3.7-10.1.3.8 has no address but gateways"},
		"gateway of v6":     {with("10.1.2.0/24", "", "", "fd00::1"), "gateway fd00::1 cannot be"},
		"gateway of v4":     {with("fd00::/64", "", "", "10.1.2.1"), "gateway 10.1.2.1 cannot be"},
		"broadcast gateway": {with("10.1.2.0/24", "", "", "10.1.2.255"), "gateway 10.1.2.255 cannot be"},
		"multicast gateway": {with("10.1.2.0/24", "", "", "224.0.0.1"), "gateway 224.0.0.1 cannot be"},
		"multicast":         {with("224.0.0.0/24", "", "", ""), "invalid range set 0: network 224.0.0.0/24 has no address for an interface"},
		"v6 multicast":      {with("ff02::/64", "", "", ""), "network ff02::/64 has no address for an interface"},
		"loopback":          {with("127.0.0.0/8", "", "", ""), "network 127.0.0.0/8 has no address for an interface"},
		"none":              {nil, "IP ranges"},
		"empty set":         {[]ipam.RangeSet{{}}, "invalid range set 0: empty range set"},
		"no subnet":         {with("", "10.1.2.1", "", ""), `invalid range set 0: "subnet" is missing`},
		"/31":               {with("10.1.2.0/31", "", "", ""), "too small"},
		"/32":               {with("10.1.2.1/32", "", "", ""), "too small"},
		"/127":              {with("fd00::/127", "", "", ""), "too small"},
		"/128":              {with("fd00::1/128", "", "", ""), "too small"},
		"host bits":         {with("10.1.2.3/24", "", "", ""), "host bits"},
		"mapped subnet":     {with("::ffff:10.1.2.0/120", "", "", ""), "without ::ffff:"},
		"start outside":     {with("10.1.2.0/24", "10.1.3.1", "", ""), "RangeStart 10.1.3.1 not in network 10.1.2.0/24"},
		"start of family":   {with("10.1.2.0/24", "fd00::1", "", ""), "RangeStart fd00::1 not in network"},
		"end outside":       {with("10.1.2.0/24", "", "10.1.3.1", ""), "RangeEnd 10.1.3.1 not in network"},
		"end before start":  {with("10.1.2.0/24", "10.1.2.9", "10.1.2.8", ""), `invalid range set 0: RangeStart 10.1.2.9 is after RangeEnd 10.1.2.8; exchange the values of "rangeStart" and "rangeEnd"`},
		"zone":              {with("fe80::/64", "fe80::1%eth0", "", ""), "has a zone"},
		"mixed": {[]ipam.RangeSet{{with("10.1.2.0/24", "", "", "")[0][0], with("fd00::/64", "", "", "")[0][0]}},
			"invalid range set 0: mixed address families"},
		"overlap in a set": {[]ipam.RangeSet{append(oneRange("10.1.2.0/24", "", "10.1.2.9"), oneRange("10.1.2.0/24", "10.1.2.9", "")...)},
			"subnets 10.1.2.1-10.1.2.9 and 10.1.2.9-10.1.2.254 overlap"},
		"sets overlap": {[]ipam.RangeSet{oneRange("10.1.2.0/24", "", ""), oneRange("10.1.0.0/16", "", "")}, "range set 0 overlaps with 1"},
		"parts of a set": {[]ipam.RangeSet{append(oneRange("10.1.2.0/24", "", "10.1.2.8"), oneRange("10.1.2.0/24", "10.1.2.9", "")...)},
			"10.1.2.1-10.1.2.8,10.1.2.9-10.1.2.254 gw 10.1.2.1"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := ipam.Complete(tt.sets, spec.Newest)
			got := fmt.Sprint(err)
			if err == nil {
				got = fmt.Sprintf("%s gw %s", tt.sets[0], tt.sets[0][0].Gateway)
			}
			if !strings.Contains(got, tt.want) {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestCompleteOldVersions(t *testing.T) {
	two := []ipam.RangeSet{oneRange("10.1.0.0/24", "", ""), oneRange("10.2.0.0/24", "", "")}
	if err := ipam.Complete(two, spec.V020); err == nil || !strings.Contains(err.Error(), "more than 1 address per family") {
		t.Errorf("two sets of a family in 0.2.0: %v", err)
	}
	if err := ipam.Complete(two, spec.V030); err != nil {
		t.Errorf("the same in 0.3.0: %v", err)
	}
	if err := ipam.Complete([]ipam.RangeSet{oneRange("10.1.0.0/24", "", ""), oneRange("fd00::/64", "", "")}, spec.V020); err != nil {
		t.Errorf("one of each family in 0.2.0: %v", err)
	}
}

func TestRoundRobin(t *testing.T) {
	dir := t.TempDir()
	r := sets(t, "10.1.0.0/29") // .1 is the gateway, .2 to .6 can be leased
	for i, want := range []string{"10.1.0.2", "10.1.0.3", "10.1.0.4"} {
		wantAddrs(t, mustAdd(t, dir, ipam.Options{}, r, owner(fmt.Sprint("c", i))), want)
	}
	del(t, dir, ipam.Options{}, owner("c0"))
	wantAddrs(t, mustAdd(t, dir, ipam.Options{}, r, owner("d")), "10.1.0.5")
	wantAddrs(t, mustAdd(t, dir, ipam.Options{}, r, owner("e")), "10.1.0.6")
	wantAddrs(t, mustAdd(t, dir, ipam.Options{}, r, owner("f")), "10.1.0.2") // from the beginning again
	_, err := add(t, dir, ipam.Options{}, r, owner("g"))
	wantCode(t, err, spec.CodeExhausted, "range 0: ")
	del(t, dir, ipam.Options{}, owner("d"))
	os.WriteFile(filepath.Join(dir, "net1", "last_reserved_ip.0"), []byte("rubbish"), 0o600)
	wantAddrs(t, mustAdd(t, dir, ipam.Options{}, r, owner("g")), "10.1.0.5")
}

func TestSetOfRanges(t *testing.T) {
	dir := t.TempDir()
	set := append(oneRange("10.1.0.0/24", "10.1.0.10", "10.1.0.11"), oneRange("10.2.0.0/24", "10.2.0.1", "10.2.0.2")...)
	r := []ipam.RangeSet{set}
	if err := ipam.Complete(r, spec.Newest); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir, ipam.Options{})
	defer s.Close()
	for i, want := range []string{"{10.1.0.10/24 10.1.0.1", "{10.1.0.11/24 10.1.0.1", "{10.2.0.2/24 10.2.0.1"} {
		ips, err := ipam.Allocate(s, r, make([]netip.Addr, 1), owner(fmt.Sprint(i)))
		if err != nil || !strings.HasPrefix(fmt.Sprint(ips[0]), want) {
			t.Errorf("got %v, %v, want %s", ips, err, want)
		}
	}
}

// A gateway is leased to no attachment, whichever set it belongs to.
func TestGatewayOfOtherSet(t *testing.T) {
	r := []ipam.RangeSet{oneRange("10.1.0.0/24", "10.1.0.2", "10.1.0.9"), oneRange("10.1.0.0/24", "10.1.0.15", "10.1.0.16")}
	r[0][0].Gateway = addr("10.1.0.15")
	if err := ipam.Complete(r, spec.Newest); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	_, err := add(t, dir, ipam.Options{}, r, owner("a"), addr("10.1.0.15"))
	wantCode(t, err, spec.CodeConfig, "requested ip 10.1.0.15 is subnet's gateway")
	wantAddrs(t, mustAdd(t, dir, ipam.Options{}, r, owner("a")), "10.1.0.2", "10.1.0.16")
	_, err = add(t, dir, ipam.Options{}, r, owner("b"))
	wantCode(t, err, spec.CodeExhausted, "range 1")
	s := open(t, dir, ipam.Options{})
	defer s.Close()
	if full, err := ipam.Exhausted(s, r); err != nil || full != 1 {
		t.Errorf("exhausted: %d, %v, want 1", full, err)
	}
}

// A second ADD of an attachment is refused, whatever addresses and ranges it has, and the first one
// keeps its addresses. Those of an earlier boot are free.
func TestSecondAddRefused(t *testing.T) {
	dir := t.TempDir()
	r := sets(t, "10.1.0.0/24", "fd00:1::/64")
	boot := ipam.Options{Boot: "one"}
	first := mustAdd(t, dir, boot, r, owner("a"))
	for name, tt := range map[string]struct {
		sets []ipam.RangeSet
		want []netip.Addr
		text string
	}{
		"the same":           {r, nil, "range 0: 10.1.0.2 has been allocated to a, duplicate allocation is not allowed; run DEL of interface eth0"},
		"its own address":    {r, first[:1], "range 0: 10.1.0.2 has been allocated to a, "},
		"another address":    {r, []netip.Addr{addr("10.1.0.9")}, "range 0: 10.1.0.2 has been allocated to a, "},
		"its second set":     {sets(t, "10.3.0.0/24", "10.1.0.0/24"), nil, "range 1: 10.1.0.2 has been allocated to a, "},
		"none of its ranges": {sets(t, "10.3.0.0/24"), nil, "range 0: 10.1.0.2 has been allocated to a, "},
	} {
		_, err := add(t, dir, boot, tt.sets, owner("a"), tt.want...)
		t.Log(name)
		wantCode(t, err, spec.CodeBusy, tt.text)
		wantLeases(t, dir, "10.1.0.2 a eth0", "fd00:1::2 a eth0")
	}
	other := owner("a")
	other.IfName = "eth1"
	wantAddrs(t, mustAdd(t, dir, boot, r, other), "10.1.0.3", "fd00:1::3")
	next := ipam.Options{Boot: "two"}
	wantAddrs(t, mustAdd(t, dir, next, r, owner("a")), "10.1.0.4", "fd00:1::4")
	wantLeases(t, dir, "10.1.0.4 a eth0", "fd00:1::4 a eth0")
	wantAddrs(t, del(t, dir, next, owner("a")), "10.1.0.4", "fd00:1::4")
	wantAddrs(t, mustAdd(t, dir, next, r, owner("a")), "10.1.0.5", "fd00:1::5")
}

func TestRequested(t *testing.T) {
	dir := t.TempDir()
	r := sets(t, "10.1.0.0/24", "fd00:1::/64")
	wantAddrs(t, mustAdd(t, dir, ipam.Options{}, r, owner("a"), addr("10.1.0.77"), addr("10.1.0.77")), "10.1.0.77", "fd00:1::2")
	_, err := add(t, dir, ipam.Options{}, r, owner("b"), addr("10.1.0.77"))
	for _, text := range []string{"IP address 10.1.0.77 is not", "range set 10.1.0.1-10.1.0.254; ", "container a, interface eth0"} {
		wantCode(t, err, spec.CodeBusy, text)
	}
	_, err = add(t, dir, ipam.Options{}, r, owner("b"), addr("fd00:1::2"))
	wantCode(t, err, spec.CodeBusy, "range 1: requested IP address fd00:1::2 is not")
	wantLeases(t, dir, "10.1.0.77 a eth0", "fd00:1::2 a eth0") // 10.1.0.78 was released
	for name, tt := range map[string]struct {
		want []netip.Addr
		text string
	}{
		"gateway":      {[]netip.Addr{addr("10.1.0.1")}, "requested ip 10.1.0.1 is subnet's gateway"},
		"outside":      {[]netip.Addr{addr("10.9.0.1")}, "requested IPs: 10.9.0.1; "},
		"two sets":     {[]netip.Addr{addr("10.9.0.1")}, "range set: 10.1.0.1-10.1.0.254 and fd00:1::1-fd00:1::ffff:ffff:ffff:ffff"},
		"broadcast":    {[]netip.Addr{addr("10.1.0.255")}, "requested IPs"},
		"two of a set": {[]netip.Addr{addr("10.1.0.8"), addr("10.1.0.9")}, "requested IPs: 10.1.0.9; "},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := add(t, dir, ipam.Options{}, r, owner("b"), tt.want...)
			wantCode(t, err, spec.CodeConfig, tt.text)
		})
	}
	wantAddrs(t, mustAdd(t, dir, ipam.Options{}, r, owner("c")), "10.1.0.79", "fd00:1::3")
}

// If ADD fails in the third set, the leases from the others are released.
func TestAllocateUndo(t *testing.T) {
	dir := t.TempDir()
	mustAdd(t, dir, ipam.Options{}, sets(t, "10.3.0.0/30"), owner("b"))
	_, err := add(t, dir, ipam.Options{}, sets(t, "10.1.0.0/24", "10.2.0.0/24", "10.3.0.0/30"), owner("a"))
	wantCode(t, err, spec.CodeExhausted, "range 2")
	wantLeases(t, dir, "10.3.0.2 b eth0")
}

// In a dense range, the first free address is beyond those that are tried one by one, or the range
// is too large to count.
func TestDenseRange(t *testing.T) {
	dir := t.TempDir()
	r := sets(t, "10.1.0.0/23", "fd00::/32")
	s := open(t, dir, ipam.Options{})
	defer s.Close()
	a, b := addr("10.1.0.2"), addr("fd00::2")
	for range 300 {
		if err := s.Reserve(a, owner("x")); err != nil {
			t.Fatal(err)
		}
		if err := s.Reserve(b, owner("x")); err != nil {
			t.Fatal(err)
		}
		a, b = a.Next(), b.Next()
	}
	ips, err := ipam.Allocate(s, r, make([]netip.Addr, 2), owner("y"))
	if err != nil || ips[0].Address.Addr() != a || ips[1].Address.Addr() != b {
		t.Errorf("got %v, %v, want %s and %s", ips, err, a, b)
	}
	if freed := release(t, s, "x"); len(freed) != 600 {
		t.Errorf("freed %d leases", len(freed))
	}
}

func TestExhausted(t *testing.T) {
	dir := t.TempDir()
	r := sets(t, "10.1.0.0/29", "10.2.0.0/24")
	full := func() int {
		s, err := ipam.OpenReadOnly(t.Context(), dir, "net1", ipam.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		i, err := ipam.Exhausted(s, r)
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	for i := range 5 {
		if i == 4 {
			// Leases outside the set do not matter.
			mustAdd(t, dir, ipam.Options{}, sets(t, "10.3.0.0/24", "10.4.0.0/24", "10.5.0.0/24"), owner("z"))
		}
		if i > 0 && full() != -1 {
			t.Errorf("false alarm with %d leases", i)
		}
		mustAdd(t, dir, ipam.Options{}, r, owner(fmt.Sprint(i)))
	}
	if full() != 0 {
		t.Error("the full set is not seen")
	}
	mustAdd(t, dir, ipam.Options{}, r[1:], owner("more"))
	del(t, dir, ipam.Options{}, owner("3"))
	if full() != -1 {
		t.Error("false alarm after a DEL")
	}
}

// Leases without an owner are reused when the range has no free address left.
func TestLeasesWithoutOwnerReused(t *testing.T) {
	dir := t.TempDir()
	r := sets(t, "10.1.0.0/29")
	net := filepath.Join(dir, "net1")
	os.MkdirAll(net, 0o755)
	for i := 2; i <= 5; i++ {
		os.WriteFile(filepath.Join(net, fmt.Sprint("10.1.0.", i)), make([]byte, i%2*40), 0o600)
	}
	os.WriteFile(filepath.Join(net, "10.1.0.1"), nil, 0o600) // the gateway, which cannot be leased
	wantAddrs(t, mustAdd(t, dir, ipam.Options{}, r, owner("a")), "10.1.0.6")
	for i, want := range []string{"10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.5"} {
		wantAddrs(t, mustAdd(t, dir, ipam.Options{}, r, owner(fmt.Sprint(i))), want)
	}
	_, err := add(t, dir, ipam.Options{}, r, owner("last"))
	wantCode(t, err, spec.CodeExhausted, "range set")
}
