package nsid_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"cnibox/internal/nsid"
)

// The ID is the namespace's by whichever path and descriptor; what else is at a path has none.
// Opening in all kinds of files is in TestKernelOpenNS of rtnl.
func TestAt(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	dir := t.TempDir()
	if err := errors.Join(os.Symlink(nsid.Thread, dir+"/link"), os.WriteFile(dir+"/file", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	want, err := nsid.Current()
	if err != nil || want == (nsid.ID{}) {
		t.Fatalf("current: %v, %v", want, err)
	}
	for path, wantErr := range map[string]error{
		nsid.Thread: nil, dir + "/link": nil, "": os.ErrNotExist, dir + "/none": os.ErrNotExist, dir: nsid.ErrNotNS,
		dir + "/file": nsid.ErrNotNS, filepath.Join(dir, "file", "below"): nsid.ErrNotNS, "/proc/thread-self/ns/mnt": nsid.ErrNotNS,
	} {
		id, err := nsid.At(path)
		if !errors.Is(err, wantErr) || err == nil && id != want {
			t.Errorf("%q: got %s, %v; want %s, %v", path, id, err, want, wantErr)
		}
	}
	fd, err := nsid.Open(nsid.Thread)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if id, err := nsid.Of(fd); err != nil || id != want || id.String() == "0:0" {
		t.Errorf("of a descriptor: %s, %v", id, err)
	}
}
