package watch

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// A deleted lease is an event if a live attachment has its address, and its file stays away. Leases
// that a DEL deletes are none, nor are those whose file is there again.
func TestDeletedLeases(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "leases", "demo")
	live := []string{"10.1.0.2", "10.1.0.5"}
	var mu sync.Mutex
	var asked []string
	w := &Watch{
		ConfDir: t.TempDir(), LeaseDirs: func() []string { return []string{dir} },
		Warn: t.Logf,
		Leased: func(l Lease) bool {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, l.Network+" "+l.Addr.String())
			return slices.Contains(live, l.Addr.String())
		},
	}
	lease := func(addr string) string { return filepath.Join(dir, addr) }
	write := func(name string) {
		t.Helper()
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(addr string) {
		t.Helper()
		if err := os.Remove(lease(addr)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, addr := range []string{"10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.5"} {
		write(lease(addr))
	}
	dirs, err := w.openLeases()
	if err != nil {
		t.Fatal(err)
	}
	events := make(chan string)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go w.watchLeases(ctx, dirs, func(why string) { events <- why })

	remove("10.1.0.3") // as DEL does
	// Both names are moved away and back in one step, so that there is no time without the files.
	if err := unix.Renameat2(unix.AT_FDCWD, lease("10.1.0.4"), unix.AT_FDCWD, lease("10.1.0.5"), unix.RENAME_EXCHANGE); err != nil {
		t.Fatal(err)
	}
	remove("10.1.0.2")
	if got := <-events; got != "the lease of 10.1.0.2 in network demo was deleted" {
		t.Errorf("the first event: %s", got)
	}
	mu.Lock()
	defer mu.Unlock()
	slices.Sort(asked)
	if want := []string{"demo 10.1.0.2", "demo 10.1.0.3"}; !slices.Equal(asked, want) {
		t.Errorf("searched for %q, want %q", asked, want)
	}
}
