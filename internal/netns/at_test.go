package netns_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/cnibox/cnibox/internal/netns"
)

// Every path and descriptor of a namespace leads to the same ID, and other files have none.
// TestKernelOpen opens files of all types.
func TestIDAtPath(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	dir := t.TempDir()
	if err := errors.Join(os.Symlink(netns.Thread, dir+"/link"), os.WriteFile(dir+"/file", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	want, err := netns.Host().ID()
	if err != nil || want == (netns.ID{}) {
		t.Fatalf("current: %v, %v", want, err)
	}
	for path, wantErr := range map[string]error{
		netns.Thread: nil, dir + "/link": nil, "": os.ErrNotExist, dir + "/none": os.ErrNotExist, dir: netns.ErrNotNS,
		dir + "/file": netns.ErrNotNS, filepath.Join(dir, "file", "below"): netns.ErrNotNS, "/proc/thread-self/ns/mnt": netns.ErrNotNS,
	} {
		id, err := netns.IDAt(path)
		if !errors.Is(err, wantErr) || err == nil && id != want {
			t.Errorf("%q: got %s, %v; want %s, %v", path, id, err, want, wantErr)
		}
	}
	here, err := netns.Open(netns.Thread)
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	if id, err := here.ID(); err != nil || id != want || id.String() == "0:0" {
		t.Errorf("of a descriptor: %s, %v", id, err)
	}
}
