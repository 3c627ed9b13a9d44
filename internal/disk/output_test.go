package disk_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/disk"
)

// A path that a user names: a regular file is replaced, and keeps owner and mode; anything else is an
// error at once, and stays.
func TestOutput(t *testing.T) {
	for name, tt := range map[string]struct {
		before     func(dir string) error
		want, fail string
		mode       os.FileMode
	}{
		"no file": {nil, "file=new", "", 0o640},
		"a file":  {func(dir string) error { return os.WriteFile(dir+"/file", []byte("older"), 0o604) }, "file=new", "", 0o604},
		"a setuid file": {func(dir string) error {
			return errors.Join(os.WriteFile(dir+"/file", nil, 0o755), os.Chmod(dir+"/file", 0o755|os.ModeSetuid))
		}, "file=new", "", 0o755},
		"a link":        {func(dir string) error { return link(dir, "file") }, "file=L--------- other=kept", "is a symbolic link", 0},
		"the next name": {func(dir string) error { return link(dir, "file.new") }, "file=new file.new=L--------- other=kept", "", 0o640},
		"a pipe":        {func(dir string) error { return unix.Mkfifo(dir+"/file", 0o600) }, "file=p---------", "is not a regular file", 0},
		"a directory":   {func(dir string) error { return os.Mkdir(dir+"/file", 0o700) }, "file=d---------", "is not a regular file", 0},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if tt.before != nil {
				if err := tt.before(dir); err != nil {
					t.Fatal(err)
				}
			}
			err := disk.Output(dir+"/file", []byte("new"), 0o640)
			if tt.fail == "" && err != nil || tt.fail != "" && (err == nil || !strings.Contains(err.Error(), tt.fail)) {
				t.Errorf("got %v, want %q", err, tt.fail)
			}
			if got := content(t, dir); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if st, serr := os.Stat(dir + "/file"); err == nil && (serr != nil || st.Mode() != tt.mode) {
				t.Errorf("mode %v, %v, want %v", st, serr, tt.mode)
			}
		})
	}
}

func TestOutputMissingDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := disk.Output(dir+"/none/file", nil, 0o600); !errors.Is(err, os.ErrNotExist) || content(t, dir) != "" {
		t.Errorf("got %v, and %q", err, content(t, dir))
	}
}

// The owner of the file stays, and nothing is left if the disk is full.
func TestOutputOwnerAndFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root gives files away")
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := errors.Join(os.WriteFile(file, []byte("older"), 0o600), os.Chown(file, 0, 1)); err != nil {
		t.Skipf("SKIPPED: USER_NS with several groups: %v", err)
	}
	if err := disk.Output(file, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(file); err != nil || st.Sys().(*syscall.Stat_t).Gid != 1 {
		t.Errorf("%+v, %v", st, err)
	}

	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("SKIPPED: TMPFS: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	if err := os.WriteFile(file, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := disk.Output(file, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got %v, want ENOSPC", err)
	}
	if got := content(t, dir); got != "file=old" {
		t.Errorf("there is %s", got)
	}
}
