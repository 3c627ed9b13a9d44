package ipam_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/internal/fault"
	"github.com/cnibox/cnibox/ipam"
	"github.com/cnibox/cnibox/spec"
)

func owner(id string) spec.Attachment {
	return spec.Attachment{Network: "net1", ContainerID: id, IfName: "eth0"}
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// open opens the store for changes; the test closes it.
func open(t testing.TB, dir string, o ipam.Options) *ipam.Store {
	t.Helper()
	s, err := ipam.Open(t.Context(), dir, "net1", o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func sets(t testing.TB, subnets ...string) []ipam.RangeSet {
	t.Helper()
	var sets []ipam.RangeSet
	for _, s := range subnets {
		sets = append(sets, ipam.RangeSet{{Subnet: netip.MustParsePrefix(s)}})
	}
	if err := ipam.Complete(sets, spec.Newest); err != nil {
		t.Fatal(err)
	}
	return sets
}

// add runs an ADD: open, allocate, close.
func add(t testing.TB, dir string, o ipam.Options, sets []ipam.RangeSet, who spec.Attachment, want ...netip.Addr) ([]netip.Addr, error) {
	t.Helper()
	wanted, err := ipam.MatchRequested(sets, want)
	if err != nil {
		return nil, err
	}
	s, err := ipam.Open(t.Context(), dir, who.Network, o)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	ips, err := ipam.Allocate(s, sets, wanted, who)
	var addrs []netip.Addr
	for _, ip := range ips {
		addrs = append(addrs, ip.Address.Addr())
	}
	return addrs, err
}

func mustAdd(t testing.TB, dir string, o ipam.Options, sets []ipam.RangeSet, who spec.Attachment, want ...netip.Addr) []netip.Addr {
	t.Helper()
	addrs, err := add(t, dir, o, sets, who, want...)
	if err != nil {
		t.Fatal(err)
	}
	return addrs
}

func del(t testing.TB, dir string, o ipam.Options, who spec.Attachment) []netip.Addr {
	t.Helper()
	s, err := ipam.OpenExisting(t.Context(), dir, who.Network, o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	freed, err := s.Release(who, nil)
	if err != nil {
		t.Fatal(err)
	}
	return freed
}

// leases lists the lease files with their content, "\r\n" as " ".
func leases(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, "net1"))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		if _, err := netip.ParseAddr(e.Name()); err != nil {
			continue
		}
		if !e.Type().IsRegular() {
			out = append(out, e.Name()+" "+e.Type().String())
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, "net1", e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, e.Name()+" "+strings.ReplaceAll(string(content), "\r\n", " "))
	}
	return out
}

func wantLeases(t testing.TB, dir string, want ...string) {
	t.Helper()
	if got := leases(t, dir); !slices.Equal(got, want) {
		t.Errorf("leases:\n got %q\nwant %q", got, want)
	}
}

func wantAddrs(t testing.TB, got []netip.Addr, want ...string) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("addresses: got %v, want %v", got, want)
	}
}

func wantCode(t testing.TB, err error, code int, text string) {
	t.Helper()
	if e := spec.AsError(err); e == nil || e.Code != code || !strings.Contains(e.Error(), text) {
		t.Errorf("got error %v, want code %d and %q", err, code, text)
	}
}

func TestStoreFormat(t *testing.T) {
	dir := t.TempDir()
	mustAdd(t, dir, ipam.Options{}, sets(t, "10.1.0.0/24", "fd00:1::/64"), owner("a"))
	for name, want := range map[string]string{
		"10.1.0.2":           "a\r\neth0",
		"fd00:1::2":          "a\r\neth0",
		"last_reserved_ip.0": "10.1.0.2",
		"last_reserved_ip.1": "fd00:1::2",
		"lock":               "",
	} {
		path := filepath.Join(dir, "net1", name)
		got, err := os.ReadFile(path)
		if err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, want)
		}
		if st, err := os.Stat(path); err == nil && st.Mode() != 0o600 {
			t.Errorf("%s: mode %v", name, st.Mode())
		}
	}
	for _, name := range []string{"net1", ".cnibox", ".cnibox/net1"} {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", name, st, err)
		}
	}
}

// Leases of the reference have no marks.
func TestLeasesOfReference(t *testing.T) {
	dir := t.TempDir()
	r := sets(t, "10.1.0.0/24")
	mustAdd(t, dir, ipam.Options{}, r, owner("a"))
	for name, content := range map[string]string{
		"10.1.0.10": "b\r\neth0", "10.1.0.11": "old", "10.1.0.12": "c\r\neth1\n", "10.1.0.13": " d \r\n eth0 ",
	} {
		if err := os.WriteFile(filepath.Join(dir, "net1", name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	wantAddrs(t, del(t, dir, ipam.Options{}, owner("b")), "10.1.0.10")
	wantAddrs(t, del(t, dir, ipam.Options{}, owner("old")), "10.1.0.11") // without an interface
	wantAddrs(t, del(t, dir, ipam.Options{}, owner("c")))                // of eth1
	wantAddrs(t, del(t, dir, ipam.Options{}, owner("d")), "10.1.0.13")
	if err := os.Remove(filepath.Join(dir, "net1", "10.1.0.2")); err != nil {
		t.Fatal(err)
	}
	wantAddrs(t, del(t, dir, ipam.Options{}, owner("a")))
}

func TestReserve(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, ipam.Options{})
	defer s.Close()
	a := addr("10.1.0.9")
	for range 2 {
		if err := s.Reserve(a, owner("a")); err != nil {
			t.Fatal(err)
		}
	}
	err := s.Reserve(a, owner("b"))
	if !errors.Is(err, ipam.ErrTaken) || !strings.Contains(err.Error(), "container a, interface eth0") {
		t.Errorf("got %v", err)
	}
	if l, err := s.Holder(a); err != nil || !l.Owns(owner("a")) {
		t.Errorf("holder: %v, %v", l, err)
	}
	if _, err := s.Holder(addr("10.1.0.8")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("holder of a free address: %v", err)
	}
	wantAddrs(t, release(t, s, "b"))
	wantAddrs(t, release(t, s, "a"), "10.1.0.9")
	wantAddrs(t, release(t, s, "a"))
}

// A hint may be shorter than the previous one.
func TestLastShorterHint(t *testing.T) {
	s := open(t, t.TempDir(), ipam.Options{})
	defer s.Close()
	if a, ok := s.Last(0); ok {
		t.Errorf("a new store has %s", a)
	}
	for _, text := range []string{"fd00:1::abcd", "10.1.0.254", "10.1.0.2"} {
		if err := s.SetLast(0, addr(text)); err != nil {
			t.Fatal(err)
		}
		if a, ok := s.Last(0); !ok || a.String() != text {
			t.Errorf("got %s, %v, want %s", a, ok, text)
		}
	}
}

func release(t *testing.T, s *ipam.Store, id string) []netip.Addr {
	t.Helper()
	freed, err := s.Release(owner(id), nil)
	if err != nil {
		t.Fatal(err)
	}
	return freed
}

func TestViewChangesNothing(t *testing.T) {
	dir := t.TempDir()
	if _, err := ipam.OpenReadOnly(t.Context(), dir, "net1", ipam.Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("view of nothing: %v", err)
	}
	if _, err := ipam.OpenExisting(t.Context(), dir, "net1", ipam.Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("existing store of nothing: %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("made %v", left)
	}
	net := filepath.Join(dir, "net1")
	os.Mkdir(net, 0o755)
	os.WriteFile(filepath.Join(net, "10.1.0.7"), []byte("a\r\neth0"), 0o600)
	fault.Hook = func(what string) error { t.Errorf("wanted to %s", what); return nil }
	defer func() { fault.Hook = nil }()
	s, err := ipam.OpenReadOnly(t.Context(), dir, "net1", ipam.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got, err := s.Owned(owner("a"), nil)
	if err != nil {
		t.Fatal(err)
	}
	wantAddrs(t, got, "10.1.0.7")
	for name, err := range map[string]error{
		"reserve": s.Reserve(addr("10.1.0.9"), owner("b")),
		"last":    s.SetLast(0, addr("10.1.0.9")),
		"keep":    s.DeleteStale(func(spec.Attachment) bool { return false }),
		"release": func() error { _, err := s.Release(owner("a"), nil); return err }(),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	wantLeases(t, dir, "10.1.0.7 a eth0")
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("made %v", left)
	}
}

func TestDeleteStale(t *testing.T) {
	dir := t.TempDir()
	r := sets(t, "10.1.0.0/24")
	for _, id := range []string{"a", "b", "c"} {
		mustAdd(t, dir, ipam.Options{}, r, owner(id))
	}
	net := filepath.Join(dir, "net1")
	os.WriteFile(filepath.Join(net, "10.1.0.20"), nil, 0o600)
	os.WriteFile(filepath.Join(net, "10.1.0.21"), []byte("old"), 0o600)
	os.WriteFile(filepath.Join(net, "notes.txt"), []byte("mine"), 0o600)
	var warned []string
	o := ipam.Options{Warn: func(f string, a ...any) { warned = append(warned, fmt.Sprintf(f, a...)) }}
	s := open(t, dir, o)
	err := s.DeleteStale(func(a spec.Attachment) bool { return a.ContainerID == "b" || a.IfName == "" })
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.Owned(owner("b"), nil)
	if err != nil {
		t.Fatal(err)
	}
	wantAddrs(t, got, "10.1.0.3")
	s.Close()
	wantLeases(t, dir, "10.1.0.21 old", "10.1.0.3 b eth0")
	if len(warned) != 1 || !strings.Contains(warned[0], "10.1.0.20") {
		t.Errorf("warnings: %q", warned)
	}
	if moved, _ := os.ReadDir(filepath.Join(dir, ".cnibox/net1/quarantine")); len(moved) != 1 {
		t.Errorf("quarantined: %v", moved)
	}
	if _, err := os.Stat(filepath.Join(net, "notes.txt")); err != nil {
		t.Error(err)
	}
}

func TestInvalidNetworkNames(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	for _, name := range []string{"", ".", "..", "../x", "a/b", "a\x00b", ".cnibox", strings.Repeat("n", 300)} {
		if s, err := ipam.Open(t.Context(), dir, name, ipam.Options{}); err == nil {
			s.Close()
			t.Errorf("network %q was opened", name)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the data directory: %v", err)
	}
}

// withFault lets the nth change on disk fail while fn runs, and returns the number of changes.
func withFault(n int, fn func()) (calls int) {
	fault.Hook = func(what string) error {
		if calls++; calls == n {
			return errors.New("fault: " + what)
		}
		return nil
	}
	defer func() { fault.Hook = nil }()
	fn()
	return calls
}

// For each n, the nth change on disk fails: a failed ADD leaves no lease, and the next verbs find a
// consistent store.
func TestAddUndoneAfterFault(t *testing.T) {
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprint("keepAcrossBoots ", keep), func(t *testing.T) { testAddUndoneAfterFault(t, ipam.Options{KeepAcrossBoots: keep}) })
	}
}

func testAddUndoneAfterFault(t *testing.T, o ipam.Options) {
	r := sets(t, "10.1.0.0/24", "fd00:1::/64")
	failed := 0
	for n := 1; ; n++ {
		dir := t.TempDir()
		mustAdd(t, dir, o, r, owner("old"))
		calls := withFault(n, func() {
			if _, err := add(t, dir, o, r, owner("new")); err != nil {
				failed++
				wantLeases(t, dir, "10.1.0.2 old eth0", "fd00:1::2 old eth0")
			}
		})
		del(t, dir, o, owner("new"))
		if got := mustAdd(t, dir, o, r, owner("new")); len(got) != 2 {
			t.Errorf("call %d: %v", n, got)
		}
		withFault(n, func() {
			s, err := ipam.OpenExisting(t.Context(), dir, "net1", o)
			if err != nil {
				return
			}
			defer s.Close()
			s.Release(owner("new"), nil)
		})
		del(t, dir, o, owner("new"))
		wantLeases(t, dir, "10.1.0.2 old eth0", "fd00:1::2 old eth0")
		wantAddrs(t, del(t, dir, o, owner("old")), "10.1.0.2", "fd00:1::2")
		if calls < n {
			break
		}
	}
	if failed < 4 {
		t.Errorf("only %d of the faults made ADD fail", failed)
	}
}

// The same for the first ADD, and for the first one after a boot.
func TestFirstAddAfterFault(t *testing.T) {
	r := sets(t, "10.1.0.0/24")
	for n := 1; ; n++ {
		dir := t.TempDir()
		calls := withFault(n, func() {
			add(t, dir, ipam.Options{Boot: "one"}, r, owner("a"))
		})
		mustAdd(t, dir, ipam.Options{Boot: "one"}, r, owner("b"))
		calls = max(calls, withFault(n, func() {
			add(t, dir, ipam.Options{Boot: "two"}, r, owner("c"))
		}))
		del(t, dir, ipam.Options{Boot: "two"}, owner("c"))
		mustAdd(t, dir, ipam.Options{Boot: "two"}, r, owner("c"))
		for _, id := range []string{"a", "b"} {
			if left := del(t, dir, ipam.Options{Boot: "two"}, owner(id)); len(left) > 0 {
				t.Errorf("call %d: %s still had %v", n, id, left)
			}
		}
		if got := leases(t, dir); len(got) != 1 || !strings.HasSuffix(got[0], " c eth0") {
			t.Errorf("call %d: %q", n, got)
		}
		if calls < n {
			break
		}
	}
}

// If a lease was replaced in place, the mark of the former owner is ignored.
func TestMarksVerified(t *testing.T) {
	dir := t.TempDir()
	mustAdd(t, dir, ipam.Options{}, sets(t, "10.1.0.0/24"), owner("a"))
	path := filepath.Join(dir, "net1", "10.1.0.2")
	if err := os.WriteFile(path, []byte("b\r\neth0"), 0o600); err != nil {
		t.Fatal(err)
	}
	wantAddrs(t, del(t, dir, ipam.Options{}, owner("a")))
	wantLeases(t, dir, "10.1.0.2 b eth0")
	wantAddrs(t, del(t, dir, ipam.Options{}, owner("b")), "10.1.0.2")
}
