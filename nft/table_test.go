package nft_test

import (
	"context"
	"errors"
	"flag"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/fault"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/nfttest"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/spec"
)

var update = flag.Bool("update", false, "rewrite golden files")

func mustUpdate(t testing.TB, table *nft.Table, fn func(x *nft.Tx) error) {
	t.Helper()
	if err := table.Update(context.Background(), fn); err != nil {
		t.Fatal(err)
	}
}

// everything adds one element of each type that an attachment can own.
func everything(x *nft.Tx) error {
	x.Masquerade(owner, netip.MustParsePrefix(one4+"/24"))
	x.Masquerade(owner, netip.MustParsePrefix(one6+"/64"))
	x.GuardMAC(owner, "veth1", net.HardwareAddr{2, 0, 0, 0, 0, 1})
	x.DropAdverts(owner, "veth1")
	x.Allow(owner, ip4, "CNI-ADMIN")
	x.RecordZone(owner, ip6)
	x.SetBridgePolicy(owner, "br0", true)
	host := mapping(unix.IPPROTO_UDP, 53, one4)
	host.HostIP = netip.MustParseAddr("10.0.0.1")
	host.MasqAll = true
	cond := mapping(unix.IPPROTO_SCTP, 99, one6)
	var err error
	cond.Conditions, err = nft.ParseConditions(strings.Fields(
		"ip6 saddr { fd01::/64, fd02::1 } iifname eth* meta mark & 0xff == 0x1 ct mark 7"), true)
	if err != nil {
		return err
	}
	for _, m := range []nft.PortMap{mapping(unix.IPPROTO_TCP, 8080, one4), host, mapping(unix.IPPROTO_TCP, 8080, one6), cond} {
		if err := x.PortMap(owner, m); err != nil {
			return err
		}
	}
	return nil
}

func TestKernelRender(t *testing.T) {
	ns := kerneltest.NS(t)
	mustUpdate(t, open(t, ns), everything)
	got := nfttest.Ruleset(t, ns)
	golden := filepath.Join("testdata", "everything.txt")
	if *update {
		os.MkdirAll("testdata", 0o755)
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// nft can list the tables, and load its own listing.
func TestKernelNftLoadsListing(t *testing.T) {
	ns := kerneltest.NS(t)
	mustUpdate(t, open(t, ns), everything)
	list := kerneltest.Tool(t, ns, "", "nft", "list", "ruleset")
	for _, want := range []string{
		`elements = { 10.9.0.11 comment "` + owner.Key() + ` net1/c1/eth0" : jump out-10.9.0.0-24 }`,
		`elements = { "veth1" . 02:00:00:00:00:01 comment`, `elements = { "veth1" comment`,
		`iifname @guarded iifname . ether saddr != @macs drop`,
	} {
		if !strings.Contains(list, want) {
			t.Errorf("no %q in\n%s", want, list)
		}
	}
	kerneltest.Tool(t, kerneltest.NS(t), list, "nft", "-f", "-")
}

// Adding existing elements changes nothing. Releasing them restores the base ruleset. Chains
// without rules for an address remain in the tables filter.
func TestKernelReleaseRestores(t *testing.T) {
	ns := kerneltest.NS(t)
	table := open(t, ns)
	mustUpdate(t, table, func(x *nft.Tx) error { x.Release(owner); return nil })
	if text := nfttest.Ruleset(t, ns); text != "" {
		t.Errorf("releasing nothing made\n%s", text)
	}
	mustUpdate(t, table, func(x *nft.Tx) error { return x.PortMap(other, mapping(unix.IPPROTO_TCP, 1, two4)) })
	mustUpdate(t, table, func(x *nft.Tx) error { x.GuardMAC(other, "veth2", net.HardwareAddr{2, 0, 0, 0, 0, 2}); return nil })
	before := nfttest.Ruleset(t, ns)
	mustUpdate(t, table, everything)
	with := nfttest.Ruleset(t, ns)
	mustUpdate(t, table, everything)
	if again := nfttest.Ruleset(t, ns); again != with {
		t.Errorf("the second time changed\n%s\nto\n%s", with, again)
	}
	mustUpdate(t, table, func(x *nft.Tx) error { x.Release(owner); return nil })
	after := nfttest.Ruleset(t, ns)
	ours, filter, _ := strings.Cut(after, "table ip filter {") // remains, as with the reference
	if ours != before || strings.Contains(filter, one4) || strings.Contains(filter, ip6.String()) {
		t.Errorf("after release\n%s\nwant\n%s", after, before)
	}
}

func TestKernelOwned(t *testing.T) {
	ns := kerneltest.NS(t)
	table := open(t, ns)
	if owned, err := table.Owned(owner); err != nil || owned != nil {
		t.Errorf("without a table: %v, %v", owned, err)
	}
	mustUpdate(t, table, everything)
	owned, err := table.Owned(owner, nft.KindPortMap)
	if err != nil {
		t.Fatal(err)
	}
	const want = "tcp dport 8080 -> 10.9.0.11:80"
	if !slices.ContainsFunc(owned, func(e nft.Element) bool { return e.Kind() == nft.KindPortMap && e.String() == want }) {
		t.Errorf("got %v, want %s in it", owned, want)
	}
	if owned, err := table.Owned(other); err != nil || owned != nil {
		t.Errorf("of another: %v, %v", owned, err)
	}
}

func TestKernelPortInUse(t *testing.T) {
	table := open(t, kerneltest.NS(t))
	cond, err := nft.ParseConditions([]string{"-s", "10.0.0.0/8"}, false)
	if err != nil {
		t.Fatal(err)
	}
	first := mapping(unix.IPPROTO_TCP, 8080, one4)
	mustUpdate(t, table, func(x *nft.Tx) error { return x.PortMap(owner, first) })
	second := mapping(unix.IPPROTO_TCP, 8080, two4)
	publish := func(m nft.PortMap) error {
		return table.Update(context.Background(), func(x *nft.Tx) error { return x.PortMap(other, m) })
	}
	conditional := second
	conditional.Conditions = cond
	for name, m := range map[string]nft.PortMap{"plain": second, "with conditions": conditional} {
		var taken *nft.TakenError
		if err := publish(m); !errors.As(err, &taken) {
			t.Fatalf("%s: got %v, want a TakenError", name, err)
		}
		if taken.Owner() != owner || taken.OwnerKey() != owner.Key() || taken.Target() != first.Target ||
			taken.Error() != "host port tcp 8080 is taken by net1/c1/eth0" {
			t.Errorf("%s: got %+v, %v", name, taken, taken)
		}
	}
	udp := second
	udp.Proto = unix.IPPROTO_UDP
	if err := publish(udp); err != nil {
		t.Errorf("other protocol: %v", err)
	}
	second.Replace = true
	if err := publish(second); err != nil {
		t.Fatal(err)
	}
	// A late DEL of the first owner must not delete the port
	mustUpdate(t, table, func(x *nft.Tx) error { x.Release(owner); return nil })
	if err := table.Check(func(x *nft.Tx) error { return x.PortMap(other, second) }); err != nil {
		t.Error(err)
	}
}

// CHECK of many ports dumps the map, and dumps it again if that has changed: it reports changes, and
// only of its own namespace.
func TestKernelCheckManyPorts(t *testing.T) {
	kerneltest.Slow(t)
	many := func(x *nft.Tx) (err error) {
		for port := range uint16(100) {
			err = errors.Join(err, x.PortMap(owner, mapping(unix.IPPROTO_TCP, 1000+port, one4)))
		}
		return err
	}
	one, two := open(t, kerneltest.NS(t)), open(t, kerneltest.NS(t))
	for range 2 {
		for _, table := range []*nft.Table{one, two} {
			mustUpdate(t, table, many)
			if err := errors.Join(table.Check(many), table.Check(many)); err != nil {
				t.Error(err)
			}
		}
		mustUpdate(t, one, func(x *nft.Tx) error { x.Release(owner); return nil })
		var missing *nft.MissingError
		if err := one.Check(many); !errors.As(err, &missing) || len(missing.What) < 100 {
			t.Errorf("after release: %v", err)
		}
		if err := two.Check(many); err != nil {
			t.Error(err)
		}
	}
}

func TestKernelPortTwiceInOneUpdate(t *testing.T) {
	table := open(t, kerneltest.NS(t))
	err := table.Update(context.Background(), func(x *nft.Tx) error {
		return errors.Join(x.PortMap(owner, mapping(6, 8080, one4)), x.PortMap(owner, mapping(6, 8080, two4)))
	})
	var taken *nft.TakenError
	if !errors.As(err, &taken) {
		t.Errorf("got %v, want a TakenError", err)
	}
}

func TestKernelAddressReuse(t *testing.T) {
	ns := kerneltest.NS(t)
	table := open(t, ns)
	ip := netip.MustParsePrefix(one4 + "/24")
	mustUpdate(t, table, func(x *nft.Tx) error { x.Masquerade(owner, ip); return nil })
	mustUpdate(t, table, func(x *nft.Tx) error { x.Masquerade(other, ip); return nil })
	mustUpdate(t, table, func(x *nft.Tx) error { x.Release(owner); return nil })
	if err := table.Check(func(x *nft.Tx) error { x.Masquerade(other, ip); return nil }); err != nil {
		t.Error(err)
	}
	if owned, err := table.Owned(owner); err != nil || len(owned) > 0 {
		t.Errorf("first owner has %v, %v", owned, err)
	}
}

func TestKernelDeleteStale(t *testing.T) {
	ns := kerneltest.NS(t)
	table := open(t, ns)
	third := spec.Attachment{Network: "net2", ContainerID: "c1", IfName: "eth0"}
	mustUpdate(t, table, func(x *nft.Tx) error {
		x.Masquerade(owner, netip.MustParsePrefix(one4+"/24"))
		x.Masquerade(other, netip.MustParsePrefix(two4+"/24"))
		x.Masquerade(third, netip.MustParsePrefix("10.2.0.2/24"))
		return x.PortMap(other, mapping(6, 8080, two4))
	})
	mustUpdate(t, table, func(x *nft.Tx) error {
		x.DeleteStale("net1", func(key string) bool { return key == owner.Key() }, nft.KindMasquerade)
		return nil
	})
	for _, tt := range []struct {
		of   spec.Attachment
		want int
	}{{owner, 1}, {other, 2}, {third, 1}} {
		if got, err := table.Owned(tt.of); err != nil || len(got) != tt.want {
			t.Errorf("%s: %v, %v; want %d", tt.of, got, err, tt.want)
		}
	}
	mustUpdate(t, table, func(x *nft.Tx) error {
		x.DeleteStale("net1", func(string) bool { return false })
		return nil
	})
	if got, err := table.Owned(third); err != nil || len(got) != 1 {
		t.Errorf("the other network lost its own: %v, %v", got, err)
	}
	if text := nfttest.Ruleset(t, ns); strings.Contains(text, "net1/") || strings.Contains(text, "out-10.9") {
		t.Errorf("not all of the network went:\n%s", text)
	}
}

func TestKernelCheck(t *testing.T) {
	ns := kerneltest.NS(t)
	table := open(t, ns)
	want := func(parts ...string) {
		t.Helper()
		err := table.Check(everything)
		var missing *nft.MissingError
		if len(parts) > 0 && !errors.As(err, &missing) || len(parts) == 0 && err != nil {
			t.Fatalf("got %v, want missing %q", err, parts)
		}
		for _, p := range parts {
			if !strings.Contains(err.Error(), p) {
				t.Errorf("no %q in %v", p, err)
			}
		}
	}
	want("masquerade 10.9.0.11", "tcp dport 8080 -> [fd00:9::11]:80", "base ruleset of table inet cnibox")
	if text := nfttest.Ruleset(t, ns); text != "" {
		t.Errorf("CHECK made\n%s", text)
	}
	mustUpdate(t, table, everything)
	want()
	err := table.Check(func(x *nft.Tx) error { x.Masquerade(other, netip.MustParsePrefix("10.7.0.2/24")); return nil })
	if err == nil || err.Error() != "rule set: missing: masquerade 10.7.0.2" {
		t.Errorf("no damage: got %v", err)
	}
	kerneltest.Tool(t, ns, "flush table inet cnibox", "nft", "-f", "-")
	want("base ruleset of table inet cnibox (the next ADD makes all rules anew)")
	kerneltest.Tool(t, ns, "flush table bridge cnibox", "nft", "-f", "-")
	want("base ruleset of table bridge cnibox (the next ADD makes all rules anew)")
}

// A flushed base ruleset, and one of another version, are made anew.
func TestKernelBaseIsRenewed(t *testing.T) {
	ns := kerneltest.NS(t)
	table := open(t, ns)
	mustUpdate(t, table, everything)
	good := nfttest.Ruleset(t, ns)
	kerneltest.Tool(t, ns, "flush chain inet cnibox version\nadd rule inet cnibox version return comment \"base ruleset 0\"\nflush chain inet cnibox guard", "nft", "-f", "-")
	mustUpdate(t, table, func(x *nft.Tx) error { x.Masquerade(other, netip.MustParsePrefix(two4+"/24")); return nil })
	mustUpdate(t, table, func(x *nft.Tx) error { x.Release(other); return nil })
	if got := nfttest.Ruleset(t, ns); got != good {
		t.Errorf("got\n%s\nwant\n%s", got, good)
	}
	third := func(x *nft.Tx) error { x.Masquerade(other, netip.MustParsePrefix("10.7.0.2/24")); return nil }
	for flush, by := range map[string]func(*nft.Tx) error{
		"flush ruleset":           everything,
		"flush table inet cnibox": everything, // keeps the elements
		"flush table inet cnibox\nflush table bridge cnibox":                           everything,
		"flush chain inet cnibox guard\nflush chain inet cnibox version":               everything, // as CHECK advises
		"flush chain inet cnibox out-10.9.0.0-24\nflush chain inet cnibox version":     third,
		"flush chain inet cnibox hairpin-fd00_9__-64\nflush chain inet cnibox version": third,
	} {
		kerneltest.Tool(t, ns, flush, "nft", "-f", "-")
		mustUpdate(t, table, by)
		mustUpdate(t, table, func(x *nft.Tx) error { x.Release(other); return nil })
		if got := nfttest.Ruleset(t, ns); got != good {
			t.Errorf("after %q: got\n%s\nwant\n%s", flush, got, good)
		}
		if err := table.Check(everything); err != nil {
			t.Errorf("after %q: %v", flush, err)
		}
	}
}

// A failed update changes nothing.
func TestKernelUpdateIsAtomic(t *testing.T) {
	ns := kerneltest.NS(t)
	table := open(t, ns)
	broken := errors.New("broken")
	fault.Hook = func(string) error { return broken }
	defer func() { fault.Hook = nil }()
	if err := table.Update(context.Background(), everything); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	fault.Hook = nil
	err := table.Update(context.Background(), func(x *nft.Tx) error { return errors.Join(everything(x), broken) })
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	// The table of cnibox with a set that conflicts with the base ruleset
	kerneltest.Tool(t, ns, "table inet cnibox { set gate4_host { type ipv4_addr . inet_proto . inet_service; }; }", "nft", "-f", "-")
	before := nfttest.Ruleset(t, ns)
	// Before Linux 6 the error is for the first rule that uses the set.
	err = table.Update(context.Background(), everything)
	if err == nil || !strings.Contains(err.Error(), "set gate4_host") && !strings.Contains(err.Error(), "rules of chain ports of table inet cnibox") {
		t.Errorf("got %v, want an error about set gate4_host", err)
	} else if strings.Contains(err.Error(), "file exists") && (spec.AsError(err).Code != spec.CodeNotReady || !strings.Contains(err.Error(), "another program has made")) {
		t.Errorf("got %v, want what to do about it", err)
	}
	if after := nfttest.Ruleset(t, ns); after != before {
		t.Errorf("got\n%s\nwant\n%s", after, before)
	}
}

// Without a lock file, concurrent updates exclude each other.
func TestKernelLockWithoutFile(t *testing.T) {
	ns := kerneltest.NS(t)
	table := nft.Open(ns, nft.WithLock("/proc/none/lock"))
	inside, leave := make(chan bool), make(chan bool)
	done := make(chan error)
	go func() {
		done <- table.Update(context.Background(), func(*nft.Tx) error { inside <- true; <-leave; return nil })
	}()
	<-inside
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := table.Update(ctx, everything); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v while the other has the lock", err)
	}
	leave <- true
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	mustUpdate(t, table, everything)
}

// Elements of owners with long or unusual names are distinguished.
func TestKernelLongOwnerNames(t *testing.T) {
	ns := kerneltest.NS(t)
	table := open(t, ns)
	long := spec.Attachment{Network: strings.Repeat("n", 200), ContainerID: "a\"b\nc", IfName: "eth0"}
	mustUpdate(t, table, func(x *nft.Tx) error { return x.PortMap(long, mapping(6, 80, one4)) })
	err := table.Update(context.Background(), func(x *nft.Tx) error { return x.PortMap(other, mapping(6, 80, two4)) })
	var taken *nft.TakenError
	if !errors.As(err, &taken) || taken.OwnerKey() != long.Key() || taken.Owner().Key() == taken.OwnerKey() {
		t.Errorf("got %v", err)
	}
	mustUpdate(t, table, func(x *nft.Tx) error { x.Release(long); return nil })
	if owned, _ := table.Owned(long); len(owned) > 0 {
		t.Errorf("left %v", owned)
	}
}

// Adding or releasing an attachment takes the same requests, and reads as much, among 10 as among 1000.
func TestKernelThousandAttachments(t *testing.T) {
	ns := kerneltest.NS(t)
	table := open(t, ns)
	owner := func(i int) spec.Attachment {
		return spec.Attachment{Network: "net1", ContainerID: "c" + strconv.Itoa(i), IfName: "eth0"}
	}
	add := func(i int) {
		ip := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		mustUpdate(t, table, func(x *nft.Tx) error {
			x.Masquerade(owner(i), netip.PrefixFrom(ip, 16))
			m := mapping(6, uint16(10000+i), ip.String())
			m.TargetPrefix = netip.PrefixFrom(ip, 16)
			return x.PortMap(owner(i), m)
		})
	}
	release := func(i int) {
		ip := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		m := mapping(6, uint16(10000+i), ip.String())
		known := append(nft.KnownMasquerade(ip), nft.KnownPort(m)...)
		mustUpdate(t, table, func(x *nft.Tx) error {
			x.ReleaseKnown(owner(i), known, nft.KindMasquerade, nft.KindPortMap)
			return nil
		})
	}
	read := func(int) {
		if _, err := table.Elements(); err != nil {
			t.Fatal(err)
		}
	}
	next := 0
	among := func(n int) (added, released, all map[fault.Work]int) {
		for ; next < n; next++ {
			add(next)
		}
		count := func(fn func(int)) map[fault.Work]int {
			work := fault.Count(func() { fn(5000) })
			delete(work, fault.Threads) // none if a socket of the update before is still open
			return work
		}
		return count(add), count(release), count(read)
	}
	added, released, few := among(10)
	addedLater, releasedLater, many := among(1000)
	t.Logf("adding one: %v, releasing one: %v, reading 10: %v, reading 1000: %v", added, released, few, many)
	if !maps.Equal(added, addedLater) || added[fault.Transactions] != 1 {
		t.Errorf("adding one among 10 took %v, among 1000 %v", added, addedLater)
	}
	if !maps.Equal(released, releasedLater) || released[fault.Transactions] != 1 {
		t.Errorf("releasing one among 10 took %v, among 1000 %v", released, releasedLater)
	}
	if many[fault.Received] < 10*few[fault.Received] {
		t.Errorf("reading 10 took %v, reading 1000 %v: there is nothing to compare with", few, many)
	}
}

func BenchmarkKernelAdd(b *testing.B) {
	ns := kerneltest.NS(b)
	table := open(b, ns)
	for i := 0; b.Loop(); i++ {
		o := spec.Attachment{Network: "net1", ContainerID: strconv.Itoa(i), IfName: "eth0"}
		ip := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		mustUpdate(b, table, func(x *nft.Tx) error { x.Masquerade(o, netip.PrefixFrom(ip, 8)); return nil })
	}
}
