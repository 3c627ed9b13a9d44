package ipam_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/ipam"
	"github.com/cnibox/cnibox/spec"
)

// With workerEnv the test binary is a worker that runs ADD and DEL: DIR:NAME:ROUNDS.
const workerEnv = "CNIBOX_IPAM_WORKER"

func TestMain(m *testing.M) {
	if job := os.Getenv(workerEnv); job != "" {
		if err := work(job); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func worker(dir, name string, rounds int) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s:%s:%d", workerEnv, dir, name, rounds))
	return cmd
}

// pool is the range of the workers. With 8 workers and 3 leases each, every address is reused many
// times.
const pool = "10.1.0.0/26"

// work runs rounds of ADD and DEL, with up to three leases at a time. For each lease it creates a
// file in the directory claims, so that an address that is leased twice is detected.
func work(job string) error {
	f := strings.Split(job, ":")
	rounds, err := strconv.Atoi(f[2])
	if err != nil {
		return err
	}
	set := []ipam.RangeSet{{{Subnet: netip.MustParsePrefix(pool)}}}
	if err := ipam.Complete(set, spec.Newest); err != nil {
		return err
	}
	for i := range rounds + 3 {
		if i < rounds {
			if err := claim(f[0], set, fmt.Sprint(f[1], "-", i)); err != nil {
				return err
			}
		}
		if i >= 3 {
			if err := unclaim(f[0], fmt.Sprint(f[1], "-", i-3)); err != nil {
				return err
			}
		}
	}
	return nil
}

func claim(dir string, set []ipam.RangeSet, id string) error {
	s, err := ipam.Open(context.Background(), dir, "net1", ipam.Options{})
	if err != nil {
		return err
	}
	defer s.Close()
	ips, err := ipam.Allocate(s, set, make([]netip.Addr, 1), owner(id))
	if err != nil {
		return err
	}
	return mark(dir, ips[0].Address.Addr().String())
}

func mark(dir, ip string) error {
	f, err := os.OpenFile(filepath.Join(dir, "claims", ip), os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("an address was given out twice: %w", err)
	}
	return f.Close()
}

func unclaim(dir, id string) error {
	s, err := ipam.OpenExisting(context.Background(), dir, "net1", ipam.Options{})
	if err != nil {
		return err
	}
	defer s.Close()
	owned, err := s.Owned(owner(id), nil)
	if err != nil || len(owned) != 1 {
		return fmt.Errorf("%s has %v, %w", id, owned, err)
	}
	if err := os.Remove(filepath.Join(dir, "claims", owned[0].String())); err != nil {
		return err
	}
	freed, err := s.Release(owner(id), nil)
	if err != nil || len(freed) != 1 {
		return fmt.Errorf("%s freed %v, %w", id, freed, err)
	}
	return nil
}

func TestConcurrentProcesses(t *testing.T) {
	kerneltest.Native(t)
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "claims"), 0o700))
	var ours sync.WaitGroup
	for i := range 8 {
		ours.Go(func() {
			if out, err := worker(dir, fmt.Sprint("w", i), 200).CombinedOutput(); err != nil {
				t.Errorf("worker %d: %v: %s", i, err, out)
			}
		})
	}
	ours.Wait()
	wantLeases(t, dir)
	if left, _ := os.ReadDir(filepath.Join(dir, "claims")); len(left) > 0 && !t.Failed() {
		t.Errorf("claims left: %v", left)
	}
}

// A worker is killed at random moments. Afterwards each lease is valid and found by its owner, and
// GC empties the store.
func TestKilledProcess(t *testing.T) {
	kerneltest.Native(t)
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "claims"), 0o700))
	for i := range 25 {
		cmd := worker(dir, fmt.Sprint("k", i), 100000)
		must(t, cmd.Start())
		time.Sleep(time.Duration(5+rand.IntN(40)) * time.Millisecond) // not a wait for a state: the moment is random
		must(t, cmd.Process.Kill())
		cmd.Wait()
		must(t, os.RemoveAll(filepath.Join(dir, "claims")))
		must(t, os.Mkdir(filepath.Join(dir, "claims"), 0o700))
		if _, err := os.Stat(filepath.Join(dir, "net1")); err != nil {
			continue // killed before it started
		}
		checkIndex(t, dir)
	}
	s := open(t, dir, ipam.Options{})
	must(t, s.DeleteStale(func(spec.Attachment) bool { return false }))
	s.Close()
	wantLeases(t, dir)
	mustAdd(t, dir, ipam.Options{}, sets(t, pool), owner("after"))
}

// checkIndex requires that the index matches the files, and releases half of the leases.
func checkIndex(t *testing.T, dir string) {
	t.Helper()
	s := open(t, dir, ipam.Options{})
	defer s.Close()
	for i, line := range leases(t, dir) {
		f := strings.Fields(line)
		if len(f) != 3 {
			t.Errorf("a lease without an owner: %q", line)
			continue
		}
		owned, err := s.Owned(owner(f[1]), nil)
		if err != nil || len(owned) != 1 || owned[0] != addr(f[0]) {
			t.Errorf("%s: found %v, %v", line, owned, err)
		}
		if i%2 == 0 {
			if _, err := s.Release(owner(f[1]), nil); err != nil {
				t.Error(err)
			}
		}
	}
}

// The number of reads and writes, which unlike time does not vary with load, must not grow with the
// number of leases. Only DEL of an attachment without leases reads all, as the reference does. The
// minimum of three rounds is compared, since Go's runtime also reads and writes.
func TestCostOfManyLeases(t *testing.T) {
	r := sets(t, "10.0.0.0/8")
	few, many := t.TempDir(), t.TempDir()
	fill(t, few, 10)
	fill(t, many, 5000)
	verbs := []struct {
		name string
		run  func(dir string)
	}{
		{"ADD", func(dir string) { mustAdd(t, dir, ipam.Options{}, r, owner("x")) }},
		{"ADD again", func(dir string) {
			_, err := add(t, dir, ipam.Options{}, r, owner("x"))
			wantCode(t, err, spec.CodeBusy, "duplicate allocation")
		}},
		{"CHECK", func(dir string) { wantOneOwned(t, dir, "x") }},
		{"DEL", func(dir string) { del(t, dir, ipam.Options{}, owner("x")) }},
	}
	cost := map[string][2]int{}
	for round := range 3 {
		for _, verb := range verbs {
			a, b := ioCalls(t, func() { verb.run(few) }), ioCalls(t, func() { verb.run(many) })
			if had := cost[verb.name]; round > 0 {
				a, b = min(a, had[0]), min(b, had[1])
			}
			cost[verb.name] = [2]int{a, b}
		}
	}
	for name, n := range cost {
		t.Logf("%s: %d calls with 10 leases, %d with 5000", name, n[0], n[1])
		if n[1] > n[0]+6 || n[0] > 40 {
			t.Errorf("%s: %d calls with 10 leases, %d with 5000", name, n[0], n[1])
		}
	}
}

func wantOneOwned(t testing.TB, dir, id string) {
	t.Helper()
	s, err := ipam.OpenReadOnly(context.Background(), dir, "net1", ipam.Options{})
	must(t, err)
	defer s.Close()
	if owned, err := s.Owned(owner(id), nil); err != nil || len(owned) != 1 {
		t.Errorf("%v, %v", owned, err)
	}
}

// fill makes n leases.
func fill(t testing.TB, dir string, n int) {
	t.Helper()
	s := open(t, dir, ipam.Options{})
	defer s.Close()
	a := addr("10.0.0.2")
	r := []ipam.RangeSet{{{Subnet: netip.MustParsePrefix("10.0.0.0/8")}}}
	must(t, ipam.Complete(r, spec.Newest))
	for i := range n {
		_, err := ipam.Allocate(s, r, []netip.Addr{a}, owner(fmt.Sprint("c", i)))
		must(t, err)
		a = a.Next()
	}
	must(t, s.SetLast(0, a.Prev()))
}

// ioCalls returns the number of reads and writes that fn makes: syscr and syscw of proc_pid_io(5).
func ioCalls(t *testing.T, fn func()) int {
	t.Helper()
	count := func() (n int) {
		io, err := os.ReadFile("/proc/self/io")
		if err != nil {
			t.Skipf("SKIPPED: no task I/O accounting (CONFIG_TASK_IO_ACCOUNTING): %v", err)
		}
		for line := range bytes.Lines(io) {
			var v int
			if key, value, ok := strings.Cut(strings.TrimSpace(string(line)), ": "); ok && strings.HasPrefix(key, "sysc") {
				v, _ = strconv.Atoi(value)
			}
			n += v
		}
		return n
	}
	before := count()
	fn()
	return count() - before
}

func BenchmarkVerbs(b *testing.B) {
	r := []ipam.RangeSet{{{Subnet: netip.MustParsePrefix("10.0.0.0/8")}}}
	must(b, ipam.Complete(r, spec.Newest))
	for _, n := range []int{10, 1000, 60000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			dir := b.TempDir()
			fill(b, dir, n)
			mustAdd(b, dir, ipam.Options{}, r, owner("warm"))
			for b.Loop() {
				mustAdd(b, dir, ipam.Options{}, r, owner("x"))
				wantOneOwned(b, dir, "x")
				del(b, dir, ipam.Options{}, owner("x"))
			}
		})
	}
}
