package ipam

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/spec"
)

// withStore opens a store, runs fn and closes the store.
func withStore(t testing.TB, dir string, o Options, fn func(*Store)) {
	t.Helper()
	s, err := Open(t.Context(), dir, "net1", o)
	if err != nil {
		t.Fatal(err)
	}
	fn(s)
	s.Close()
}

// links lists the symbolic links in the index of a boot as NAME -> TARGET.
func links(t testing.TB, dir, boot string) (list []string) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, ".cnibox/net1/by-boot", boot, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range all {
		to, err := os.Readlink(link)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, filepath.Base(link)+" -> "+to)
	}
	return list
}

// `ls -l` shows the owners and their addresses.
func TestIndexIsReadable(t *testing.T) {
	dir, o := t.TempDir(), Options{Boot: "one"}
	a := spec.Attachment{Network: "net1", ContainerID: "a", IfName: "eth0"}
	odd := spec.Attachment{Network: "net1", ContainerID: "../b:%", IfName: "eth0"}
	long := spec.Attachment{Network: "net1", ContainerID: strings.Repeat("c", 300), IfName: "eth0"}
	withStore(t, dir, o, func(s *Store) {
		for text, who := range map[string]spec.Attachment{"10.1.0.2": a, "fd00::2": a, "10.1.0.3": odd, "10.1.0.4": long} {
			if err := s.Reserve(netip.MustParseAddr(text), who); err != nil {
				t.Fatal(err)
			}
		}
	})
	got := links(t, dir, "one")
	want := []string{"..%2Fb%3A%25:eth0 -> 10.1.0.3", "a:eth0 -> 10.1.0.2,fd00::2", strings.Repeat("c", 200) + "%"}
	if len(got) != 3 || got[0] != want[0] || got[1] != want[1] && got[1] != "a:eth0 -> fd00::2,10.1.0.2" || !strings.HasPrefix(got[2], want[2]) {
		t.Errorf("got %q", got)
	}
	withStore(t, dir, o, func(s *Store) {
		for who, n := range map[spec.Attachment]int{a: 2, odd: 1, long: 1} {
			if err := s.load(); err != nil || s.x.dir.fd < 0 {
				t.Errorf("the index is not used: %v", err)
			}
			if freed, err := s.Release(who, nil); err != nil || len(freed) != n {
				t.Errorf("%s: freed %v, %v", who.ContainerID, freed, err)
			}
		}
	})
	if got := links(t, dir, "one"); len(got) > 0 {
		t.Errorf("after DEL: %q", got)
	}
}

// Leases that were changed without the index, as by the reference and by killed processes.
func TestLeasesChangedWithoutIndex(t *testing.T) {
	o := Options{Boot: "one"}
	who := spec.Attachment{Network: "net1", ContainerID: "a", IfName: "eth0"}
	two, three := netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.1.0.3")
	for name, tt := range map[string]struct {
		before func(t *testing.T, dir string)
		add    []netip.Addr // addresses for which ADD is refused
		freed  []netip.Addr // addresses that DEL releases
	}{
		"leased": {func(t *testing.T, dir string) {}, []netip.Addr{two}, []netip.Addr{two}},
		"killed after the lease": {func(t *testing.T, dir string) {
			withStore(t, dir, o, func(s *Store) { s.Reserve(three, who) })
		}, []netip.Addr{two, three}, []netip.Addr{two, three}},
		"killed before the lease": {func(t *testing.T, dir string) {
			withStore(t, dir, o, func(s *Store) { s.load(); s.mark(Lease{"a", "eth0"}, two, three) })
		}, []netip.Addr{two}, []netip.Addr{two}},
		"killed while it frees": {func(t *testing.T, dir string) {
			withStore(t, dir, o, func(s *Store) { s.free(two) })
		}, nil, nil},
		"freed by the reference": {func(t *testing.T, dir string) {
			os.Remove(filepath.Join(dir, "net1/10.1.0.2"))
		}, nil, nil},
		"leased to another owner": {func(t *testing.T, dir string) {
			os.WriteFile(filepath.Join(dir, "net1/10.1.0.2"), []byte("b\r\neth0"), 0o600)
		}, nil, nil},
		"moved by the reference": {func(t *testing.T, dir string) {
			os.Rename(filepath.Join(dir, "net1/10.1.0.2"), filepath.Join(dir, "net1/10.1.0.3"))
		}, nil, []netip.Addr{three}},
		// Only the leases in the mark are read.
		"one more by the reference": {func(t *testing.T, dir string) {
			os.WriteFile(filepath.Join(dir, "net1/10.1.0.3"), []byte("a\r\neth0"), 0o600)
		}, []netip.Addr{two}, []netip.Addr{two}},
		"mark lost": {func(t *testing.T, dir string) {
			os.Remove(filepath.Join(dir, ".cnibox/net1/by-boot/one/a:eth0"))
		}, nil, []netip.Addr{two}},
		"mark damaged": {func(t *testing.T, dir string) {
			mark := filepath.Join(dir, ".cnibox/net1/by-boot/one/a:eth0")
			os.Remove(mark)
			os.WriteFile(mark, nil, 0o600)
		}, []netip.Addr{two}, []netip.Addr{two}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			withStore(t, dir, o, func(s *Store) {
				if err := s.Reserve(two, who); err != nil {
					t.Fatal(err)
				}
			})
			tt.before(t, dir)
			withStore(t, dir, o, func(s *Store) {
				if got, err := s.marked(Lease{"a", "eth0"}); err != nil || !slices.Equal(got, tt.add) {
					t.Errorf("ADD finds %v, %v, want %v", got, err, tt.add)
				}
				if got, err := s.Release(who, nil); err != nil || !slices.Equal(got, tt.freed) {
					t.Errorf("DEL frees %v, %v, want %v", got, err, tt.freed)
				}
			})
			if got := links(t, dir, "one"); len(got) > 0 {
				t.Errorf("marks after DEL: %q", got)
			}
		})
	}
}

// An owner may have more addresses than a symbolic link can list.
func TestIndexOfManyAddresses(t *testing.T) {
	dir, o := t.TempDir(), Options{Boot: "one"}
	who := spec.Attachment{Network: "net1", ContainerID: "a", IfName: "eth0"}
	const n = 500
	withStore(t, dir, o, func(s *Store) {
		a := netip.MustParseAddr("10.0.0.1")
		for range n {
			if err := s.Reserve(a, who); err != nil {
				t.Fatal(err)
			}
			a = a.Next()
		}
	})
	if got := links(t, dir, "one"); !slices.Equal(got, []string{"a:eth0 -> " + many}) {
		t.Errorf("got %q", got)
	}
	withStore(t, dir, o, func(s *Store) {
		if owned, err := s.Owned(who, nil); err != nil || len(owned) != n {
			t.Errorf("%d addresses, %v", len(owned), err)
		}
		if freed, err := s.Release(who, nil); err != nil || len(freed) != n {
			t.Errorf("%d freed, %v", len(freed), err)
		}
	})
	if got := links(t, dir, "one"); len(got) > 0 {
		t.Errorf("after DEL: %q", got)
	}
}

// FuzzIndex replaces an owner's mark by any text.
func FuzzIndex(f *testing.F) {
	for _, s := range []string{"10.0.0.7", "10.0.0.9,10.0.0.7", "many", ",", "::1", "10.0.0.07", "x", "../../outside"} {
		f.Add(s)
	}
	who := spec.Attachment{Network: "net1", ContainerID: "a", IfName: "eth0"}
	dir := f.TempDir()
	o := Options{Boot: "one"} // without fsync
	f.Fuzz(func(t *testing.T, to string) {
		if err := os.RemoveAll(filepath.Join(dir, "net1")); err != nil {
			t.Fatal(err)
		}
		withStore(t, dir, o, func(s *Store) {
			if err := s.Reserve(netip.MustParseAddr("10.0.0.7"), who); err != nil {
				t.Fatal(err)
			}
		})
		link := filepath.Join(dir, ".cnibox/net1/by-boot/one/a:eth0")
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
		if os.Symlink(to, link) != nil {
			return // NUL byte or too long
		}
		withStore(t, dir, o, func(s *Store) {
			if err := s.Reserve(netip.MustParseAddr("10.0.0.8"), who); err != nil {
				t.Fatal(err)
			}
			if _, err := Exhausted(s, nil); err != nil {
				t.Fatal(err)
			}
			freed, err := s.Release(who, nil)
			if err != nil || !slices.Contains(freed, netip.MustParseAddr("10.0.0.8")) {
				t.Fatalf("freed %v, %v", freed, err)
			}
		})
	})
}

func FuzzLease(f *testing.F) {
	for _, s := range []string{"", "a", "a\r\neth0", "a\r\neth0\n", "\x00\x00", "a b\r\nc", "\r\neth0"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		l, ok := parseLease(content)
		if !ok {
			return
		}
		if again, ok := parseLease([]byte(l.text())); !ok || again != l {
			t.Errorf("%q: %q, then %q", content, l, again)
		}
	})
}

func FuzzResolvConf(f *testing.F) {
	f.Add([]byte("nameserver 1.1.1.1\nsearch a b\n# c\noptions ndots:5\ndomain x"))
	f.Fuzz(func(t *testing.T, text []byte) {
		dns := ParseResolvConf(text)
		for _, s := range slices.Concat(dns.Nameservers, dns.Search, dns.Options) {
			if s == "" {
				t.Error("an empty word")
			}
		}
	})
}

// FuzzRange completes any range and iterates over its first addresses.
func FuzzRange(f *testing.F) {
	f.Add("10.1.0.0/24", "", "10.1.0.9", "10.1.0.1")
	f.Add("fd00::/8", "fd00::ffff:ffff:ffff:ffff", "", "")
	f.Add("255.255.255.252/30", "", "", "")
	f.Fuzz(func(t *testing.T, subnet, start, end, gw string) {
		var r Range
		r.Subnet, _ = netip.ParsePrefix(subnet)
		r.Start, _ = netip.ParseAddr(start)
		r.End, _ = netip.ParseAddr(end)
		r.Gateway, _ = netip.ParseAddr(gw)
		set := RangeSet{r}
		if Complete([]RangeSet{set}, spec.Newest) != nil {
			return
		}
		a := set[0].Start
		for range min(set.size(), 300) {
			if !set.Contains(a) || !set[0].Subnet.Contains(a) {
				t.Fatalf("%s is not in %s", a, set)
			}
			a = set.after(a)
		}
		if n := set.size(); n <= 300 && a != set[0].Start {
			t.Errorf("%d steps in %s end at %s", n, set, a)
		}
	})
}

// If one of two leases of a gone owner is released, its mark lists the other one.
func TestMarkOfGoneOwner(t *testing.T) {
	dir := t.TempDir()
	gone := spec.Attachment{Network: "net1", ContainerID: "a", IfName: "eth0"}
	o := Options{Boot: "one", Gone: func(o spec.Attachment, _ netip.Addr, _ time.Time) bool { return o == gone }}
	r := []RangeSet{{{Subnet: netip.MustParsePrefix("10.1.0.0/30")}}}
	if err := Complete(r, spec.Newest); err != nil {
		t.Fatal(err)
	}
	withStore(t, dir, o, func(s *Store) {
		for _, a := range []string{"10.1.0.2", "10.2.0.2"} {
			if err := s.Reserve(netip.MustParseAddr(a), gone); err != nil {
				t.Fatal(err)
			}
		}
		if ips, err := Allocate(s, r, make([]netip.Addr, 1), spec.Attachment{Network: "net1", ContainerID: "b", IfName: "eth0"}); err != nil || len(ips) != 1 {
			t.Fatalf("got %v, %v", ips, err)
		}
	})
	if got := links(t, dir, "one"); !slices.Equal(got, []string{"a:eth0 -> 10.2.0.2", "b:eth0 -> 10.1.0.2"}) {
		t.Errorf("got %q", got)
	}
}
