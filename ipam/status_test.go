package ipam_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/disk"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/ipam"
)

// immutable sets the attribute that `chattr +i` sets.
func immutable(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	const immutableFlag = 0x10 // FS_IMMUTABLE_FL, include/uapi/linux/fs.h
	return unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, immutableFlag)
}

// STATUS fails for data directories in which ADD fails, for root and for an ordinary user, and for
// no others.
func TestKernelStatusOfDataDir(t *testing.T) {
	mkdir := func(path string, mode uint32) error {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
		return os.Chmod(path, os.FileMode(mode))
	}
	immutableDir := func(path string) error {
		return errors.Join(mkdir(path, 0o755), immutable(path))
	}
	tests := map[string]struct {
		make func(dir string) error // dir: "dataDir"
		uid  int                    // 0: root
		want string                 // part of the error; "": ADD works
	}{
		"missing":           {func(string) error { return nil }, 0, ""},
		"empty":             {func(dir string) error { return mkdir(dir, 0o755) }, 0, ""},
		"mode 0":            {func(dir string) error { return mkdir(dir, 0) }, 0, ""}, // root has CAP_DAC_OVERRIDE
		"link":              {func(dir string) error { return errors.Join(mkdir(dir+"-real", 0o755), os.Symlink(dir+"-real", dir)) }, 0, ""},
		"file":              {func(dir string) error { return os.WriteFile(dir, nil, 0o644) }, 0, "data/net1: not a directory"},
		"file for network":  {func(dir string) error { return errors.Join(mkdir(dir, 0o755), os.WriteFile(dir+"/net1", nil, 0o644)) }, 0, "net1: not a directory"},
		"link to nothing":   {func(dir string) error { return os.Symlink("nothing", dir) }, 0, "data is a symbolic link, and what it leads to is missing"},
		"link of network":   {func(dir string) error { return errors.Join(mkdir(dir, 0o755), os.Symlink("nothing", dir+"/net1")) }, 0, "net1 is a symbolic link"},
		"immutable":         {immutableDir, 0, "data: operation"},
		"immutable network": {func(dir string) error { return immutableDir(dir + "/net1") }, 0, "net1: operation"},
		"read-only": {func(dir string) error {
			return errors.Join(mkdir(dir, 0o755), unix.Mount("tmpfs", dir, "tmpfs", unix.MS_RDONLY, ""))
		}, 0, "data: read-only"},
		"read-only network": {func(dir string) error {
			return errors.Join(mkdir(dir+"/net1", 0o755), unix.Mount("tmpfs", dir+"/net1", "tmpfs", unix.MS_RDONLY, ""))
		}, 0, "net1: read-only"},
		"a user's":         {func(dir string) error { return errors.Join(mkdir(dir, 0o755), os.Chown(dir, 1234, 1234)) }, 1234, ""},
		"root's":           {func(dir string) error { return mkdir(dir, 0o755) }, 1234, "data: permission denied"},
		"root's network":   {func(dir string) error { return errors.Join(mkdir(dir+"/net1", 0o755), os.Chmod(dir, 0o777)) }, 1234, "net1: permission denied"},
		"root's and shut":  {func(dir string) error { return mkdir(dir, 0o700) }, 1234, "net1: permission denied"},
		"below root's":     {func(dir string) error { return mkdir(filepath.Dir(dir), 0o755) }, 1234, "permission denied"},
		"a user's, locked": {func(dir string) error { return errors.Join(mkdir(dir, 0o500), os.Chown(dir, 1234, 1234)) }, 1234, "data: permission denied"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			inTmpfs(t, "1m", func(top string) {
				dir := filepath.Join(top, "data")
				err := errors.Join(os.Chmod(top, 0o755), os.Chmod(filepath.Dir(top), 0o755), tt.make(dir))
				if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EOPNOTSUPP) {
					t.Log("SKIPPED: immutable directories on tmpfs came with Linux 6.6")
					return
				}
				if kerneltest.OneUser() && (errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL)) {
					// Immutable files need CAP_LINUX_IMMUTABLE in the initial user namespace, chown
					// a second user.
					t.Logf("SKIPPED: not in the namespace of an ordinary user: %v", err)
					return
				}
				if err != nil {
					t.Errorf("prepare: %v", err)
					return
				}
				// Only for this thread, which is discarded
				if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(tt.uid), uintptr(tt.uid), uintptr(tt.uid)); errno == unix.EINVAL && kerneltest.OneUser() {
					t.Log("SKIPPED: the namespace of an ordinary user has no second user")
					return
				} else if errno != 0 {
					t.Errorf("setresuid: %v", errno)
					return
				}
				status := disk.Creatable(filepath.Join(dir, "net1"))
				_, err = add(t, dir, ipam.Options{}, sets(t, "10.1.0.0/24"), owner("a"))
				if (status == nil) != (tt.want == "") || status != nil && !strings.Contains(status.Error(), tt.want) {
					t.Errorf("STATUS: got %v, want %q", status, tt.want)
				}
				if (err == nil) != (tt.want == "") {
					t.Errorf("ADD: %v", err)
				}
			})
		})
	}
}
