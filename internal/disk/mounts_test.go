package disk_test

import (
	"errors"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/disk"
	"github.com/cnibox/cnibox/internal/netns"
)

// Mounts are those of the calling thread. A mount point may have a space in its name, which the
// kernel writes as \040.
func TestKernelMounts(t *testing.T) {
	dir := t.TempDir() + "/a b"
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	want := disk.Mount{Root: "/", Point: dir}
	var mounts []disk.Mount
	err := netns.OnDiscardedThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
			return err
		}
		mounts, err = disk.Mounts("")
		return err
	})
	if errors.Is(err, os.ErrPermission) && os.Getenv("CNIBOX_KERNEL") != "require" {
		t.Skipf("SKIPPED: %v", err)
	}
	if err != nil || !slices.Contains(mounts, want) {
		t.Errorf("%v does not contain %v, %v", mounts, want, err)
	}
	if mounts, err = disk.Mounts(""); err != nil || slices.Contains(mounts, want) {
		t.Errorf("%v contains %v, %v", mounts, want, err)
	}
}
