package ipam

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cnibox/spec"
)

// with opens a store, runs fn and closes it.
func with(t testing.TB, dir string, o Options, fn func(*Store)) {
	t.Helper()
	s, err := Open(t.Context(), dir, "net1", o)
	if err != nil {
		t.Fatal(err)
	}
	fn(s)
	s.Close()
}

// links lists the index of a boot as NAME -> TARGET.
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

// TestIndexIsReadable is about what `ls -l` shows a person.
func TestIndexIsReadable(t *testing.T) {
	dir, o := t.TempDir(), Options{Boot: "one"}
	a := spec.Attachment{Network: "net1", ContainerID: "a", IfName: "eth0"}
	odd := spec.Attachment{Network: "net1", ContainerID: "../b:%", IfName: "eth0"}
	long := spec.Attachment{Network: "net1", ContainerID: strings.Repeat("c", 300), IfName: "eth0"}
	with(t, dir, o, func(s *Store) {
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
	with(t, dir, o, func(s *Store) {
		for who, n := range map[spec.Attachment]int{a: 2, odd: 1, long: 1} {
			if err := s.load(); err != nil || s.x.mem != nil {
				t.Errorf("the index is not used: %v", err)
			}
			if freed, err := s.Release(who); err != nil || len(freed) != n {
				t.Errorf("%s: freed %v, %v", who.ContainerID, freed, err)
			}
		}
	})
	if got := links(t, dir, "one"); len(got) > 0 {
		t.Errorf("after DEL: %q", got)
	}
}

// TestIndexIsBelieved counts on the index where the leases are untouched, and on a scan
// where they are not: after a change by others, and after a store that was killed. The
// times are whole and even seconds, as the coarsest file system has them.
func TestIndexIsBelieved(t *testing.T) {
	dir, o := t.TempDir(), Options{Boot: "one"}
	who := spec.Attachment{Network: "net1", ContainerID: "a", IfName: "eth0"}
	scanned := func() (was bool) {
		with(t, dir, o, func(s *Store) {
			if err := s.load(); err != nil {
				t.Fatal(err)
			}
			was = s.x.mem != nil
		})
		return was
	}
	with(t, dir, o, func(s *Store) {
		if err := s.Reserve(netip.MustParseAddr("10.1.0.2"), who); err != nil {
			t.Fatal(err)
		}
	})
	if scanned() {
		t.Error("the index is not believed after a change of ours")
	}
	if untouched.Nsec != 0 || untouched.Sec%2 != 0 {
		t.Error("a coarse file system would round the time")
	}
	lease := filepath.Join(dir, "net1", "10.1.0.3")
	if err := os.WriteFile(lease, []byte("b\r\neth0"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !scanned() {
		t.Error("the index is believed after another program's change")
	}
	if scanned() {
		t.Error("the scan is repeated")
	}
	if got := links(t, dir, "one"); !slices.Equal(got, []string{"a:eth0 -> 10.1.0.2", "b:eth0 -> 10.1.0.3"}) {
		t.Errorf("the index after the scan: %q", got)
	}
	s, err := Open(t.Context(), dir, "net1", o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Release(who); err != nil {
		t.Fatal(err)
	}
	s.release() // as if it were killed
	if !scanned() {
		t.Error("the index is believed after a store that was killed")
	}
}

// TestIndexOfMany gives one owner more addresses than a symbolic link can list.
func TestIndexOfMany(t *testing.T) {
	dir, o := t.TempDir(), Options{Boot: "one"}
	who := spec.Attachment{Network: "net1", ContainerID: "a", IfName: "eth0"}
	const n = 500
	with(t, dir, o, func(s *Store) {
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
	with(t, dir, o, func(s *Store) {
		if owned, err := s.Owned(who); err != nil || len(owned) != n {
			t.Errorf("%d addresses, %v", len(owned), err)
		}
		if freed, err := s.Release(who); err != nil || len(freed) != n {
			t.Errorf("%d freed, %v", len(freed), err)
		}
	})
	with(t, dir, o, func(s *Store) {
		if err := s.load(); err != nil || s.x.mem != nil {
			t.Errorf("the index after DEL: %v", err)
		}
	})
	if got := links(t, dir, "one"); len(got) > 0 {
		t.Errorf("after DEL: %q", got)
	}
}

// oldStore writes what a release before 0.2 kept for one lease. The nanoseconds are those
// that commit 9f333ea gave a lease in the boot "one".
func oldStore(t *testing.T, dir, boot string) {
	t.Helper()
	for _, name := range []string{"net1", ".cnibox/net1"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, nsec := range map[string]int64{"10.1.0.2": 717626031, "10.1.0.9": 123456789} { // ours, the reference's
		path := filepath.Join(dir, "net1", name)
		if err := os.WriteFile(path, []byte("a"+name[len(name)-1:]+"\r\neth0"), 0o600); err != nil {
			t.Fatal(err)
		}
		at := unix.NsecToTimespec(1e18 + nsec)
		times := []unix.Timespec{at, at}
		if err := unix.UtimesNanoAt(unix.AT_FDCWD, path, times, 0); err != nil {
			t.Fatal(err)
		}
	}
	own := filepath.Join(dir, ".cnibox/net1")
	if err := os.Symlink(boot, filepath.Join(own, "boot")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(own, "index"), []byte("cniboxL1"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestOldStore takes over the store of an older release: within a boot all leases go on,
// and those that it made are free in the next one.
func TestOldStore(t *testing.T) {
	for boot, want := range map[string][]string{
		"one": {"a2:eth0 -> 10.1.0.2", "a9:eth0 -> 10.1.0.9"},
		"two": {"a9:eth0 -> 10.1.0.9"},
	} {
		dir := t.TempDir()
		oldStore(t, dir, "one")
		for range 2 {
			with(t, dir, Options{Boot: boot}, func(s *Store) {
				if err := s.load(); err != nil {
					t.Fatal(err)
				}
			})
			if got := links(t, dir, boot); !slices.Equal(got, want) {
				t.Errorf("boot %s: got %q, want %q", boot, got, want)
			}
		}
		left, err := os.ReadDir(filepath.Join(dir, ".cnibox/net1"))
		if err != nil || len(left) != 1 || left[0].Name() != byBootDir {
			t.Errorf("boot %s: left %v, %v", boot, left, err)
		}
	}
}

// FuzzIndex puts a foreign text in the place of an owner's link, in an index that is
// believed.
func FuzzIndex(f *testing.F) {
	for _, s := range []string{"10.0.0.7", "10.0.0.9,10.0.0.7", "many", ",", "::1", "10.0.0.07", "x", "../../outside"} {
		f.Add(s)
	}
	who := spec.Attachment{Network: "net1", ContainerID: "a", IfName: "eth0"}
	dir := f.TempDir()
	o := Options{Boot: "one"} // unlike leases that are kept, these need not reach the disk
	f.Fuzz(func(t *testing.T, to string) {
		if err := os.RemoveAll(filepath.Join(dir, "net1")); err != nil {
			t.Fatal(err)
		}
		with(t, dir, o, func(s *Store) {
			if err := s.Reserve(netip.MustParseAddr("10.0.0.7"), who); err != nil {
				t.Fatal(err)
			}
		})
		link := filepath.Join(dir, ".cnibox/net1/by-boot/one/a:eth0")
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
		if os.Symlink(to, link) != nil {
			return // a zero byte, or too long
		}
		with(t, dir, o, func(s *Store) {
			if err := s.Reserve(netip.MustParseAddr("10.0.0.8"), who); err != nil {
				t.Fatal(err)
			}
			if _, err := Exhausted(s, nil); err != nil {
				t.Fatal(err)
			}
			freed, err := s.Release(who)
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

// FuzzRange completes any range and walks its first addresses.
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
