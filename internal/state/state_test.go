package state

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/kerneltest"
)

func TestDir(t *testing.T) {
	for _, tt := range []struct{ root, usual, want string }{
		{"", "/run/cni/tuning", "/run/cni/tuning"},
		{"/s", "/run/cni/tuning", "/s/tuning"},
		{"/s/", "/run/cni/dhcp.sock", "/s/dhcp.sock"},
		{"/", Leases, "/networks"},
	} {
		if got := Dir(tt.root, tt.usual); got != tt.want {
			t.Errorf("%q, %q: got %s, want %s", tt.root, tt.usual, got, tt.want)
		}
	}
}

// A configured state directory is used without a check whether the directories exist, and without a
// notice.
func TestStateDirNotChecked(t *testing.T) {
	network := func(root string) (string, string) { return LeaseDir(root, "n", false) }
	for want, dir := range map[string]func(string) (string, string){
		"/no/such": CacheDir, "/no/such/networks": network, "/no/such/flannel": FlannelDir,
	} {
		if got, notice := dir("/no/such"); got != want || notice != "" {
			t.Errorf("got %s, %q, want %s", got, notice, want)
		}
	}
	for root, want := range map[string]string{"": Leases, "/s": "/s/networks"} {
		if got, notice := LeaseDir(root, "n", true); got != want || notice != "" {
			t.Errorf("kept across boots: got %s, %q, want %s", got, notice, want)
		}
	}
}

// The default directory, on a root file system that is read-only or not.
func TestKernelFind(t *testing.T) {
	leases := leases("n")
	tests := map[string]struct {
		files    string // existing paths, separated by spaces; with a slash at the end directories
		readOnly string // read-only directory; "": none
		kind     kind
		want     string
		notice   bool
	}{
		"nothing":                     {"run/", "", leases, "var/lib/cni/networks", false},
		"nothing, read-only":          {"run/", ".", leases, "run/cnibox/networks", true},
		"/var/lib, read-only":         {"run/ var/lib/", "var/lib", leases, "run/cnibox/networks", true},
		"only that of others":         {"run/ var/lib/cni/networks/", "var/lib/cni/networks", leases, "run/cnibox/networks", true},
		"empty, read-only":            {"run/ var/lib/cni/networks/n/lock", ".", leases, "run/cnibox/networks", true},
		"hint, read-only":             {"run/ var/lib/cni/networks/n/last_reserved_ip.0", ".", leases, "run/cnibox/networks", true},
		"lease":                       {"run/ var/lib/cni/networks/n/10.1.0.2", "", leases, "var/lib/cni/networks", false},
		"lease, read-only":            {"run/ var/lib/cni/networks/n/10.1.0.2", ".", leases, "var/lib/cni/networks", false},
		"IPv6 lease, read-only":       {"run/ var/lib/cni/networks/n/fd00::2", ".", leases, "var/lib/cni/networks", false},
		"lease of another":            {"run/ var/lib/cni/networks/m/10.1.0.2", ".", leases, "run/cnibox/networks", true},
		"file in place of it":         {"run/ var/lib/cni/networks", ".", leases, "var/lib/cni/networks", false},
		"begun in /run":               {"run/cnibox/networks/n/lock var/lib/cni/networks/n/", "", leases, "run/cnibox/networks", false},
		"begun in /run, read-only":    {"run/cnibox/networks/n/lock", ".", leases, "run/cnibox/networks", false},
		"another begun":               {"run/cnibox/networks/m/lock", "", leases, "var/lib/cni/networks", false},
		"another begun, read-only":    {"run/cnibox/networks/m/lock", ".", leases, "run/cnibox/networks", false},
		"cache begun, read-only":      {"run/cnibox/cnibox/locks/", ".", leases, "run/cnibox/networks", false},
		"records alone, read-only":    {"run/cnibox/nft.lock run/cnibox/portmap/x", ".", leases, "run/cnibox/networks", true},
		"neither":                     {"", ".", leases, "var/lib/cni/networks", false},
		"cache":                       {"run/ var/lib/cni/results/n-c-eth0", "", cache, "var/lib/cni", false},
		"cache, read-only":            {"run/", ".", cache, "run/cnibox", true},
		"cache with lock, read-only":  {"run/ var/lib/cni/cnibox/locks/network-n var/lib/cni/results/.cnibox-x", ".", cache, "run/cnibox", true},
		"cache with entry, read-only": {"run/ var/lib/cni/results/n-c-eth0", ".", cache, "var/lib/cni", false},
		"cache beside leases":         {"run/cnibox/networks/n/lock", ".", cache, "run/cnibox", false},
		"cache begun":                 {"run/cnibox/cnibox/locks/ var/lib/cni/cnibox/locks/", "", cache, "run/cnibox", false},
		"flannel":                     {"run/ var/lib/cni/flannel/", "", flannel, "var/lib/cni/flannel", false},
		"flannel, read-only":          {"run/ var/lib/cni/flannel/", ".", flannel, "run/cnibox/flannel", true},
		"flannel stored, read-only":   {"run/ var/lib/cni/flannel/c", ".", flannel, "var/lib/cni/flannel", false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			inTmpfs(t, func(top string) error {
				for path := range strings.FieldsSeq(tt.files) {
					path, dir := filepath.Join(top, path), strings.HasSuffix(path, "/")
					parent := filepath.Dir(path)
					if dir {
						parent = path
					}
					if err := os.MkdirAll(parent, 0o755); err != nil {
						return err
					}
					if !dir {
						if err := os.WriteFile(path, nil, 0o600); err != nil {
							return err
						}
					}
				}
				if tt.readOnly != "" {
					if err := readOnly(top, tt.readOnly); err != nil {
						return err
					}
				}
				for range 2 { // twice, since nothing may be created
					dir, notice := find(tt.kind, top)
					if dir != filepath.Join(top, tt.want) || (notice != "") != tt.notice {
						t.Errorf("got %s, %q, want %s", dir, notice, tt.want)
					}
					if notice != "" && !strings.Contains(notice, "(read-only") {
						t.Errorf("got %q", notice)
					}
				}
				return nil
			})
		})
	}
}

// readOnly makes a directory of top read-only. If that is top itself, run remains writable as a
// file system of its own.
func readOnly(top, dir string) error {
	path := filepath.Join(top, dir)
	if dir == "." {
		if run := filepath.Join(top, "run"); exists(run) {
			if err := unix.Mount(run, run, "", unix.MS_BIND, ""); err != nil {
				return err
			}
		}
	} else if err := unix.Mount(path, path, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	return unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
}

// inTmpfs calls fn on a thread with its own mount namespace, in which a directory is an empty file
// system.
func inTmpfs(t *testing.T, fn func(dir string) error) {
	t.Helper()
	dir := t.TempDir()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the mounts end with the thread
		err := unix.Unshare(unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = unix.Mount("tmpfs", dir, "tmpfs", 0, "")
		}
		if err != nil {
			done <- &os.PathError{Op: "mount namespace", Path: dir, Err: err}
			return
		}
		done <- fn(dir)
	}()
	err := <-done
	if errors.Is(err, os.ErrPermission) && os.Getenv("CNIBOX_KERNEL") != "require" {
		t.Skipf("SKIPPED: no mount namespace without CAP_SYS_ADMIN (root or a user namespace): %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// The user has no write permission for the default directory.
func TestKernelFindPermission(t *testing.T) {
	if kerneltest.OneUser() {
		t.Skip("SKIPPED: the namespace of an ordinary user has no second user")
	}
	inTmpfs(t, func(top string) error {
		err := errors.Join(os.Chmod(top, 0o755), os.Chmod(filepath.Dir(top), 0o755), os.MkdirAll(top+"/var/lib", 0o755),
			os.Mkdir(top+"/run", 0o755), os.Chown(top+"/run", 1234, 1234))
		if err != nil {
			return err
		}
		// Only for this thread, which is discarded
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 1234, 1234, 1234); errno != 0 {
			return errno
		}
		dir, notice := find(flannel, top)
		if dir != top+"/run/cnibox/flannel" || !strings.Contains(notice, "cannot be written (permission denied)") {
			t.Errorf("got %s, %q", dir, notice)
		}
		return nil
	})
}
