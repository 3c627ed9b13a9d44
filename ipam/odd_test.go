package ipam_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/disk"
	"github.com/cnibox/cnibox/ipam"
	"github.com/cnibox/cnibox/spec"
)

// invalidFiles creates invalid files of any type at a path.
var invalidFiles = map[string]func(t *testing.T, path string){
	"symlink": func(t *testing.T, path string) {
		must(t, os.Symlink(filepath.Join(filepath.Dir(filepath.Dir(path)), "outside"), path))
	},
	"fifo": func(t *testing.T, path string) { must(t, unix.Mkfifo(path, 0o600)) },
	"dir": func(t *testing.T, path string) {
		must(t, os.MkdirAll(filepath.Join(path, "full"), 0o700))
	},
	"socket": func(t *testing.T, path string) {
		l, err := net.Listen("unix", path)
		must(t, err)
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		must(t, l.Close())
	},
	"zero":    func(t *testing.T, path string) { must(t, os.WriteFile(path, nil, 0o600)) },
	"nuls":    func(t *testing.T, path string) { must(t, os.WriteFile(path, make([]byte, 71), 0o600)) },
	"big":     func(t *testing.T, path string) { must(t, os.WriteFile(path, bytes.Repeat([]byte("x"), 1<<20), 0o600)) },
	"rubbish": func(t *testing.T, path string) { must(t, os.WriteFile(path, []byte("\x01\xff\n\n"), 0o600)) },
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// snapshot lists a tree with type, size and target of each file, without .cnibox.
func snapshot(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Name() == ".cnibox" {
			return fs.SkipDir
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		size := info.Size()
		if d.IsDir() {
			size = 0
		}
		target, _ := os.Readlink(path)
		fmt.Fprintln(&b, path, info.Mode(), size, target)
		return nil
	}))
	return b.String()
}

// inTime requires that fn returns in time.
func inTime(t *testing.T, fn func(ctx context.Context)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn(ctx)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		t.Fatal("still waiting")
	}
}

// verbs runs ADD, STATUS and DEL with GC, and returns their errors.
func verbs(ctx context.Context, dir string, r []ipam.RangeSet, o ipam.Options) []error {
	var errs []error
	s, err := ipam.Open(ctx, dir, "net1", o)
	if err == nil {
		wanted, _ := ipam.MatchRequested(r, nil)
		_, err = ipam.Allocate(s, r, wanted, owner("a"))
		s.Close()
	}
	errs = append(errs, err)
	if s, err = ipam.OpenReadOnly(ctx, dir, "net1", o); err == nil {
		_, err = ipam.Exhausted(s, r)
		s.Close()
	}
	errs = append(errs, err)
	if s, err = ipam.OpenExisting(ctx, dir, "net1", o); err == nil {
		_, err = s.Release(owner("a"), nil)
		err = errors.Join(err, s.DeleteStale(func(spec.Attachment) bool { return true }))
		s.Close()
	}
	return append(errs, err)
}

// An invalid file at an address is skipped, quarantined if the address is requested, and never
// followed or deleted.
func TestInvalidLeaseFile(t *testing.T) {
	for name, make := range invalidFiles {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			r := sets(t, "10.1.0.0/24")
			net := filepath.Join(dir, "net1")
			must(t, os.Mkdir(net, 0o700))
			must(t, os.WriteFile(filepath.Join(dir, "outside"), []byte("a\r\neth0"), 0o600))
			make(t, filepath.Join(net, "10.1.0.2"))
			inTime(t, func(ctx context.Context) {
				wantAddrs(t, mustAdd(t, dir, ipam.Options{}, r, owner("a")), "10.1.0.3")
				wantAddrs(t, del(t, dir, ipam.Options{}, owner("a")), "10.1.0.3")
				wantAddrs(t, mustAdd(t, dir, ipam.Options{}, r, owner("b"), addr("10.1.0.2")), "10.1.0.2")
			})
			wantLeases(t, dir, "10.1.0.2 b eth0")
			if moved, err := os.ReadDir(filepath.Join(dir, ".cnibox/net1/quarantine")); len(moved) != 1 {
				t.Errorf("quarantined: %v, %v", moved, err)
			}
			if got, err := os.ReadFile(filepath.Join(dir, "outside")); err != nil || string(got) != "a\r\neth0" {
				t.Errorf("outside: %q, %v", got, err)
			}
		})
	}
}

// A lock that is not a regular file is an error, without a wait.
func TestInvalidLockFile(t *testing.T) {
	for _, name := range []string{"symlink", "fifo", "dir", "socket"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			must(t, os.Mkdir(filepath.Join(dir, "net1"), 0o700))
			invalidFiles[name](t, filepath.Join(dir, "net1", "lock"))
			before := snapshot(t, dir)
			inTime(t, func(ctx context.Context) {
				for i, err := range verbs(ctx, dir, sets(t, "10.1.0.0/24"), ipam.Options{}) {
					if err == nil {
						t.Errorf("verb %d worked without a lock", i)
					}
				}
			})
			if after := snapshot(t, dir); after != before {
				t.Errorf("before:\n%s\nafter:\n%s", before, after)
			}
		})
	}
}

// Invalid files in place of the hint, the index and .cnibox stop no verb; they remain or are
// replaced.
func TestInvalidOwnFiles(t *testing.T) {
	places := []string{"net1/last_reserved_ip.0", ".cnibox/net1/by-boot", ".cnibox/net1/by-boot/one", ".cnibox/net1/by-boot/two",
		".cnibox/net1/by-boot/one/a:eth0", ".cnibox/net1/by-boot/one/.new",
		".cnibox/net1/next", ".cnibox/net1/quarantine", ".cnibox/net1", ".cnibox"}
	for _, place := range places {
		for name, make := range invalidFiles {
			t.Run(strings.ReplaceAll(place, "/", ":")+" "+name, func(t *testing.T) {
				dir := t.TempDir()
				path := filepath.Join(dir, place)
				must(t, os.MkdirAll(filepath.Join(dir, "net1"), 0o700))
				must(t, os.MkdirAll(filepath.Dir(path), 0o700))
				must(t, os.WriteFile(filepath.Join(dir, "outside"), []byte("10.1.0.99"), 0o600))
				make(t, path)
				inTime(t, func(ctx context.Context) {
					for i, err := range verbs(ctx, dir, sets(t, "10.1.0.0/24"), ipam.Options{Boot: "one"}) {
						if err != nil {
							t.Errorf("verb %d: %v", i, err)
						}
					}
				})
				wantLeases(t, dir)
				if got, err := os.ReadFile(filepath.Join(dir, "outside")); err != nil || string(got) != "10.1.0.99" {
					t.Errorf("outside: %q, %v", got, err)
				}
			})
		}
	}
}

// A file in the place of a network's directory is an error.
func TestInvalidNetworkDirectory(t *testing.T) {
	for name, make := range invalidFiles {
		if name == "dir" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			make(t, filepath.Join(dir, "net1"))
			before := snapshot(t, dir)
			inTime(t, func(ctx context.Context) {
				for i, err := range verbs(ctx, dir, sets(t, "10.1.0.0/24"), ipam.Options{}) {
					if err == nil {
						t.Errorf("verb %d worked", i)
					}
				}
			})
			if after := snapshot(t, dir); after != before {
				t.Errorf("before:\n%s\nafter:\n%s", before, after)
			}
		})
	}
}

// inTmpfs runs fn on a thread with its own mount namespace, in which a directory of the test is a
// file system of the given size.
func inTmpfs(t *testing.T, size string, fn func(dir string)) {
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
			err = unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size)
		}
		if err != nil {
			done <- err
			return
		}
		defer close(done)
		fn(dir)
	}()
	err := <-done
	if errors.Is(err, os.ErrPermission) && os.Getenv("CNIBOX_KERNEL") != "require" {
		t.Skipf("SKIPPED: no mount namespace without CAP_SYS_ADMIN (root or a user namespace): %v", err)
	}
	must(t, err)
}

// On a full disk ADD fails and leaves nothing, while DEL and GC succeed. ADD succeeds afterwards.
func TestKernelFullDisk(t *testing.T) {
	r := sets(t, "10.1.0.0/24")
	inTmpfs(t, "256k", func(dir string) {
		if _, err := add(t, dir, ipam.Options{}, r, owner("a")); err != nil {
			t.Errorf("first ADD: %v", err)
			return
		}
		ballast := filepath.Join(dir, "ballast")
		f, err := os.Create(ballast)
		for err == nil {
			_, err = f.Write(make([]byte, 4096))
		}
		f.Close()
		_, err = add(t, dir, ipam.Options{}, r, owner("b"))
		wantCode(t, err, spec.CodeIO, "no space left on device")
		if err := disk.Creatable(filepath.Join(dir, "net1")); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("usable: %v", err)
		}
		wantLeases(t, dir, "10.1.0.2 a eth0")
		wantAddrs(t, del(t, dir, ipam.Options{}, owner("a")), "10.1.0.2")
		os.Remove(ballast)
		if err := disk.Creatable(filepath.Join(dir, "net1")); err != nil {
			t.Errorf("usable: %v", err)
		}
		if _, err := add(t, dir, ipam.Options{}, r, owner("b")); err != nil {
			t.Errorf("ADD with space again: %v", err)
		}
	})
}

// On a read-only file system, with or without a lock file, DEL of an unknown attachment succeeds.
// Changes fail with the reason.
func TestKernelReadOnly(t *testing.T) {
	for _, lock := range []bool{true, false} {
		t.Run(fmt.Sprint("lock ", lock), func(t *testing.T) {
			inTmpfs(t, "1m", func(dir string) { readOnly(t, dir, lock) })
		})
	}
}

func readOnly(t *testing.T, dir string, lock bool) {
	r := sets(t, "10.1.0.0/24")
	if _, err := add(t, dir, ipam.Options{Boot: "one"}, r, owner("a")); err != nil {
		t.Errorf("first ADD: %v", err)
		return
	}
	if !lock {
		os.Remove(filepath.Join(dir, "net1", "lock"))
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Errorf("remount: %v", err)
		return
	}
	for _, boot := range []string{"one", "two"} {
		o := ipam.Options{Boot: boot}
		wantAddrs(t, del(t, dir, o, owner("unknown")))
		_, err := add(t, dir, o, r, owner("b"))
		wantCode(t, err, spec.CodeIO, "read-only")
	}
	s, err := ipam.OpenExisting(t.Context(), dir, "net1", ipam.Options{Boot: "one"})
	if err != nil {
		t.Errorf("open: %v", err)
		return
	}
	defer s.Close()
	if _, err := s.Release(owner("a"), nil); !errors.Is(err, unix.EROFS) {
		t.Errorf("DEL of a lease: %v", err)
	}
	if err := disk.Creatable(filepath.Join(dir, "other")); !errors.Is(err, unix.EROFS) {
		t.Errorf("usable: %v", err)
	}
}
