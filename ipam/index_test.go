package ipam

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"cnibox/spec"
)

// TestIndexModel compares the table with a map through random changes in a
// small space, where runs wrap around the end and entries move up.
func TestIndexModel(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	_, x := newImage(nil, 0)
	model := map[entry]bool{}
	for range 20000 {
		e := entry{uint64(rnd.IntN(8) + int(x.slots) - 4), netip.AddrFrom4([4]byte{10, 0, 0, byte(rnd.IntN(10))})}
		if rnd.IntN(2) == 0 {
			if err := x.add(e); err != nil {
				t.Fatal(err)
			}
			model[e] = true
		} else {
			if err := x.remove(e); err != nil {
				t.Fatal(err)
			}
			delete(model, e)
		}
		found, err := x.find(e.owner)
		if err != nil || slices.Contains(found, e.addr) != model[e] {
			t.Fatalf("%v: found %v, %v, want %v", e, found, err, model[e])
		}
		if int(x.count) != len(model) {
			t.Fatalf("count %d, want %d", x.count, len(model))
		}
	}
	all, err := x.all()
	if err != nil || len(all) != len(model) {
		t.Fatalf("%d entries, %v, want %d", len(all), err, len(model))
	}
	for _, e := range all {
		if !model[e] {
			t.Errorf("%v is not in the model", e)
		}
		if found, err := x.find(e.owner); err != nil || !slices.Contains(found, e.addr) {
			t.Errorf("%v: found %v, %v", e, found, err)
		}
	}
}

func TestIndexFull(t *testing.T) {
	_, x := newImage(nil, 0)
	for i := range uint64(minSlots) {
		if err := x.add(entry{i * 7, netip.IPv6Loopback()}); err == errFull {
			if i < minSlots/2 {
				t.Errorf("full with %d entries", i)
			}
			return
		}
	}
	t.Error("was never full")
}

// TestIndexOnDisk sees that the file is used, grows, and is left alone by
// verbs that change nothing.
func TestIndexOnDisk(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, ".cnibox/net1/index")
	who := spec.Attachment{Network: "net1", ContainerID: "a", IfName: "eth0"}
	with := func(fn func(*Store)) {
		s, err := Open(t.Context(), dir, "net1", Options{})
		if err != nil {
			t.Fatal(err)
		}
		fn(s)
		s.Close()
	}
	a := netip.MustParseAddr("10.0.0.1")
	with(func(s *Store) {
		for range 500 {
			if err := s.Reserve(a, who); err != nil {
				t.Fatal(err)
			}
			a = a.Next()
		}
	})
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	h, err := decodeHead(before[:headSize], int64(len(before)))
	if err != nil || h.count != 500 {
		t.Fatalf("header %+v, %v", h, err)
	}
	with(func(s *Store) {
		if err := s.load(); err != nil {
			t.Fatal(err)
		}
		if s.changed {
			t.Error("the index was made again")
		}
		if owned, err := s.Owned(who); err != nil || len(owned) != 500 {
			t.Errorf("%d addresses, %v", len(owned), err)
		}
	})
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
		t.Errorf("reading changed the index: %v", err)
	}
	with(func(s *Store) { s.Release(who) })
	with(func(s *Store) {
		if err := s.load(); err != nil || s.changed || s.x.count != 0 {
			t.Errorf("after DEL: %v, changed %v, count %d", err, s.changed, s.x.count)
		}
	})
}

// FuzzIndex puts foreign bytes in the place of the index, with the stamp and the
// sum of the header right, so that the slots are read.
func FuzzIndex(f *testing.F) {
	im, _ := newImage([]entry{{ownerHash(Lease{"a", "eth0"}), netip.MustParseAddr("10.0.0.7")}}, 0)
	f.Add([]byte(im), uint32(minSlots), uint32(1))
	f.Add([]byte{}, uint32(0), uint32(0))
	f.Add(bytes.Repeat([]byte{0xff}, len(im)), uint32(minSlots), uint32(minSlots-1))
	who := spec.Attachment{Network: "net1", ContainerID: "a", IfName: "eth0"}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, slots []byte, count1, count2 uint32) {
		net := filepath.Join(dir, "net1")
		for _, name := range []string{net, filepath.Join(dir, ".cnibox/net1")} {
			if err := os.MkdirAll(name, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		os.Remove(filepath.Join(net, "10.0.0.8"))
		if err := os.WriteFile(filepath.Join(net, "10.0.0.7"), []byte("a\r\neth0"), 0o600); err != nil {
			t.Fatal(err)
		}
		o := Options{KeepAcrossBoots: true}
		s, err := Open(t.Context(), dir, "net1", o)
		if err != nil {
			t.Fatal(err)
		}
		file := slices.Clone(slots)
		if len(file) >= headSize {
			copy(file, head{slots: count1, count: count2, stamp: s.stamp()}.encode())
		}
		s.Close()
		if err := os.WriteFile(filepath.Join(dir, ".cnibox/net1/index"), file, 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err = Open(t.Context(), dir, "net1", o); err != nil {
			t.Fatal(err)
		}
		defer s.Close()
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
