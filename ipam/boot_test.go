package ipam_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/cnibox/cnibox/ipam"
	"github.com/cnibox/cnibox/spec"
)

// writeLease writes a lease as the reference does.
func writeLease(t *testing.T, dir, ip, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, "net1"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "net1", ip), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestBootChange(t *testing.T) {
	dir := t.TempDir()
	r := sets(t, "10.1.0.0/24")
	one, two, three := ipam.Options{Boot: "one"}, ipam.Options{Boot: "two"}, ipam.Options{Boot: "three"}
	mustAdd(t, dir, one, r, owner("a"))
	mustAdd(t, dir, one, r, owner("b"))
	writeLease(t, dir, "10.1.0.50", "met\r\neth0")
	mustAdd(t, dir, one, r, owner("c"))

	v, err := ipam.OpenReadOnly(t.Context(), dir, "net1", two)
	if err != nil {
		t.Fatal(err)
	}
	got, err := v.Owned(owner("a"), nil)
	v.Close()
	if err != nil || len(got) > 0 {
		t.Errorf("seen in the next boot: %v, %v", got, err)
	}
	mustAdd(t, dir, two, r, owner("d"))
	wantLeases(t, dir, "10.1.0.5 d eth0", "10.1.0.50 met eth0") // the reference's lease has a mark now
	mustAdd(t, dir, two, r, owner("e"))
	wantLeases(t, dir, "10.1.0.5 d eth0", "10.1.0.50 met eth0", "10.1.0.6 e eth0")

	// DEL alone detects the next boot as well.
	wantAddrs(t, del(t, dir, three, owner("absent")))
	wantLeases(t, dir)
}

// If the index of the former boot is lost, its leases are kept, since their boot is unknown.
func TestBootIndexLost(t *testing.T) {
	r := sets(t, "10.1.0.0/24")
	one, two := ipam.Options{Boot: "one"}, ipam.Options{Boot: "two"}
	for name, tt := range map[string]struct {
		lose string
		want []string
	}{
		"index": {".cnibox/net1/by-boot/one", []string{"10.1.0.2 a eth0", "10.1.0.3 b eth0"}},
		"all":   {".cnibox", []string{"10.1.0.2 a eth0", "10.1.0.3 b eth0"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			mustAdd(t, dir, one, r, owner("a"))
			if err := os.RemoveAll(filepath.Join(dir, tt.lose)); err != nil {
				t.Fatal(err)
			}
			mustAdd(t, dir, two, r, owner("b"))
			wantLeases(t, dir, tt.want...)
			mustAdd(t, dir, ipam.Options{Boot: "three"}, r, owner("c"))
			wantLeases(t, dir, "10.1.0.4 c eth0")
		})
	}
}

func TestReferenceLeaseReleasedByBoot(t *testing.T) {
	dir := t.TempDir()
	r := sets(t, "10.1.0.0/24")
	writeLease(t, dir, "10.1.0.2", "pod\r\neth0")
	mustAdd(t, dir, ipam.Options{Boot: "one"}, r, owner("a"))
	wantLeases(t, dir, "10.1.0.2 pod eth0", "10.1.0.3 a eth0")
	mustAdd(t, dir, ipam.Options{Boot: "two"}, r, owner("b"))
	wantLeases(t, dir, "10.1.0.4 b eth0")
}

func TestKeepAcrossBoots(t *testing.T) {
	dir := t.TempDir()
	r := sets(t, "10.1.0.0/24")
	keep := ipam.Options{Boot: "one", KeepAcrossBoots: true}
	mustAdd(t, dir, keep, r, owner("a"))
	keep.Boot = "two"
	mustAdd(t, dir, keep, r, owner("b"))
	wantLeases(t, dir, "10.1.0.2 a eth0", "10.1.0.3 b eth0")
	if boots, err := os.ReadDir(filepath.Join(dir, ".cnibox/net1/by-boot")); len(boots) != 1 || boots[0].Name() != "kept" {
		t.Errorf("boots are noted: %v, %v", boots, err)
	}
	wantAddrs(t, del(t, dir, keep, owner("a")), "10.1.0.2")
}

// After a boot change was interrupted, with both indexes incomplete, the next verb releases only
// the leases of the former boot.
func TestBootInterrupted(t *testing.T) {
	dir := t.TempDir()
	r := sets(t, "10.1.0.0/24")
	mustAdd(t, dir, ipam.Options{Boot: "one"}, r, owner("a"))
	writeLease(t, dir, "10.1.0.9", "live\r\neth0")
	mustAdd(t, dir, ipam.Options{Boot: "two"}, r, owner("b"))
	byBoot := filepath.Join(dir, ".cnibox/net1/by-boot")
	if err := os.Mkdir(filepath.Join(byBoot, "one"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("10.1.0.2", filepath.Join(byBoot, "one", "a:eth0")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(byBoot, "two", "b:eth0")); err != nil {
		t.Fatal(err)
	}
	writeLease(t, dir, "notes.txt", "")
	mustAdd(t, dir, ipam.Options{Boot: "two"}, r, owner("c"))
	wantLeases(t, dir, "10.1.0.3 b eth0", "10.1.0.4 c eth0", "10.1.0.9 live eth0")
	s := open(t, dir, ipam.Options{Boot: "two"})
	defer s.Close()
	if err := s.DeleteStale(func(a spec.Attachment) bool { return a.ContainerID == "live" }); err != nil {
		t.Fatal(err)
	}
	wantLeases(t, dir, "10.1.0.9 live eth0")
}

// A lease of host-local up to 0.7 has no interface. It belongs to an attachment of its container that no lease names, if
// it is the only one in its range set: of several nobody can say which is whose. A reader changes nothing.
func TestLeasesWithoutInterface(t *testing.T) {
	r := sets(t, "10.1.0.0/24", "10.2.0.0/24", "fd00:1::/64")
	ranges := func() []ipam.RangeSet { return r }
	named := owner("n")
	for name, o := range map[string]ipam.Options{"one": {Boot: "one"}, "kept": {KeepAcrossBoots: true}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for a, content := range map[string]string{"10.1.0.9": "a", "10.2.0.9": "a", "fd00:1::9": "a\n", // an address of each set
				"10.1.0.20": "two", "10.1.0.21": "two", "fd00:1::20": "two", // two interfaces
				"10.1.0.30": "n", "10.1.0.31": "n\r\neth0", "10.9.0.1": "out", "fd00:9::1": "out"} {
				writeLease(t, dir, a, content)
			}
			find := func(who spec.Attachment, sets func() []ipam.RangeSet, want ...string) {
				t.Helper()
				s, err := ipam.OpenReadOnly(t.Context(), dir, "net1", o)
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				got, err := s.Owned(who, sets)
				if err != nil {
					t.Fatal(err)
				}
				wantAddrs(t, got, want...)
			}
			release := func(who spec.Attachment, want ...string) {
				t.Helper()
				find(who, ranges, want...)
				s := open(t, dir, o)
				defer s.Close()
				freed, err := s.Release(who, ranges)
				if err != nil {
					t.Fatal(err)
				}
				wantAddrs(t, freed, want...)
				if got, err := s.Owned(who, ranges); err != nil || who != named && len(got) > 0 {
					t.Errorf("%v of %s after release: %v", got, who, err)
				}
			}
			find(owner("a"), nil, "fd00:1::9") // without ranges it is the only one of its family
			release(owner("b"))                // the first one that may write marks them
			mark := filepath.Join(dir, ".cnibox/net1/by-boot", name, "a:")
			if _, err := os.Lstat(mark); err != nil {
				t.Error(err)
			}
			release(owner("a"), "10.1.0.9", "10.2.0.9", "fd00:1::9")
			if _, err := os.Lstat(mark); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("mark of released leases: %v", err)
			}
			release(owner("two"), "fd00:1::20")
			release(owner("out"), "10.9.0.1", "fd00:9::1")
			release(named, "10.1.0.31") // the lease that names it is its own
			s := open(t, dir, o)
			defer s.Close()
			if l, err := s.Holder(addr("10.1.0.20")); err != nil || !l.Owns(owner("two")) || l.Owns(owner("b")) {
				t.Errorf("holder %+v: %v", l, err)
			}
			valid := func(a spec.Attachment) bool { return a.ContainerID == "two" && a.IfName == "" }
			if err := s.DeleteStale(valid); err != nil {
				t.Fatal(err)
			}
			wantLeases(t, dir, "10.1.0.20 two", "10.1.0.21 two")
		})
	}
}

// An address may be in the marks of two owners, if the reference has released the first one's
// lease. It is released after the next boot, in whichever order the marks are read.
func TestBootStaleMark(t *testing.T) {
	r := sets(t, "10.1.0.0/24")
	one, two := ipam.Options{Boot: "one"}, ipam.Options{Boot: "two"}
	for _, ids := range [][2]string{{"a", "b"}, {"b", "a"}} {
		dir := t.TempDir()
		mustAdd(t, dir, one, r, owner(ids[0]), addr("10.1.0.2"))
		must(t, os.Remove(filepath.Join(dir, "net1/10.1.0.2")))
		mustAdd(t, dir, one, r, owner(ids[1]), addr("10.1.0.2"))
		mustAdd(t, dir, two, r, owner("c"), addr("10.1.0.3"))
		wantLeases(t, dir, "10.1.0.3 c eth0")
	}
}
