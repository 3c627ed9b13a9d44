package chain_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A broken entry is read once, since GC holds the network's lock meanwhile.
func TestListReadsBrokenOnce(t *testing.T) {
	w := newFixture(t, "rec")
	results := filepath.Join(w.Cache.Dir, "results")
	if err := os.MkdirAll(results, 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(results, "n-c-eth0")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	readOnce(t, file, func() {
		if _, broken, err := w.Cache.List(); err != nil || len(broken) != 1 {
			t.Errorf("%d broken, %v; want the one", len(broken), err)
		}
	})
}

// readOnce checks that fn opens and closes a file once.
func readOnce(t *testing.T, file string, fn func()) {
	t.Helper()
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(watch)
	if _, err := unix.InotifyAddWatch(watch, file, unix.IN_OPEN|unix.IN_CLOSE_NOWRITE); err != nil {
		t.Fatal(err)
	}
	fn()
	if n, err := unix.Read(watch, make([]byte, 4096)); n != 2*unix.SizeofInotifyEvent {
		t.Errorf("%d bytes of events, %v: the file was not read once", n, err)
	}
}

// Entries without a match are read once and not parsed, even if they are broken.
func TestSearch(t *testing.T) {
	w := newFixture(t, "rec")
	results := filepath.Join(w.Cache.Dir, "results")
	if err := os.MkdirAll(results, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"n-c-eth0": libcniEntry(""), "n-half-eth0": `{"kind":10.1.2.3`, "n-other-eth0": `{`} {
		if err := os.WriteFile(filepath.Join(results, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	readOnce(t, filepath.Join(results, "n-other-eth0"), func() {
		entries, broken, err := w.Cache.Search(func(text []byte) bool { return bytes.Contains(text, []byte("10.1.2.3")) })
		if err != nil || len(entries) != 1 || len(broken) != 1 || broken[0].Name() != "n-half-eth0" {
			t.Errorf("got %v, %v, %v", entries, broken, err)
		}
	})
}

// Running detects the lock of a running verb, and leaves it free.
func TestRunning(t *testing.T) {
	w := newFixture(t, "rec")
	if w.Cache.Running("c") {
		t.Error("there is no lock, and a verb runs")
	}
	// As a verb takes it, in another descriptor
	dir := filepath.Join(w.Cache.Dir, "cnibox", "locks")
	err := os.MkdirAll(dir, 0o700)
	fd := -1
	if err == nil {
		fd, err = unix.Open(filepath.Join(dir, "container-c"), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if w.Cache.Running("c") {
		t.Error("the lock file is there, and not locked")
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	if !w.Cache.Running("c") || w.Cache.Running("d") {
		t.Errorf("c: %t, d: %t; want that one runs for c", w.Cache.Running("c"), w.Cache.Running("d"))
	}
}
