package netns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A namespace that could not be opened hides nothing if one that can be opened has its number in the end, or if
// none has.
func TestKernelMissed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ns")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ns, err := New()
	if errors.Is(err, os.ErrPermission) && os.Getenv("CNIBOX_KERNEL") != "require" {
		t.Skipf("SKIPPED: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	id, err := ns.ID()
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("net:[%d]", id.Ino)
	visited := 0
	hidden := func() string {
		e := &visitor{
			fn:     func(string, *NS) error { visited++; return nil },
			seen:   map[string]bool{},
			missed: map[string]string{name: "/proc/self"},
		}
		return e.hidden()
	}
	ended := hidden()
	if err := ns.Bind(file); err != nil {
		t.Fatal(err)
	}
	defer Unbind(file)
	if visited != 0 {
		t.Errorf("%d are visited before it is mounted", visited)
	}
	if again := hidden(); again != ended || visited != 1 {
		t.Errorf("%q where it is mounted, %q where it is not; %d visited", again, ended, visited)
	}
	dir := filepath.Dir(file)
	if err := unix.Mount("cover", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	if covered := hidden(); covered == ended && !InUserNS() {
		t.Error("one that is covered hides nothing")
	}
}
