package e2e

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/spec"
)

// onDisk runs fn on a thread in the world's network namespace with a small tmpfs mounted at a
// directory of the world, in a mount namespace of its own. Programs are started there with run.
func (w *world) onDisk(name string, fn func()) {
	w.Helper()
	dir := w.Path(name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		w.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		defer close(done)
		runtime.LockOSThread() // the mounts end with the thread
		err := unix.Unshare(unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Setns(w.NS.FD(), unix.CLONE_NEWNET)
		}
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, "")
		}
		if err == nil {
			err = unix.Mount("tmpfs", dir, "tmpfs", 0, "size=128k,nr_inodes=100")
		}
		if err != nil {
			done <- err
			return
		}
		w.Here = true
		fn()
	}()
	err := <-done
	w.Here = false
	if errors.Is(err, os.ErrPermission) && os.Getenv("CNIBOX_KERNEL") != "require" {
		w.Skipf("SKIPPED: no mount namespace without CAP_SYS_ADMIN (root or a user namespace): %v", err)
	}
	if err != nil {
		w.Fatal(err)
	}
}

// A diskFault makes the file system at a directory fail; mend repairs it.
type diskFault struct {
	damage, repair func(dir string) error

	// locks: the cache cannot be locked, so that no verb runs.
	locks bool
}

var diskFaults = map[string]diskFault{
	"full": {
		damage: func(dir string) error {
			f, err := os.Create(filepath.Join(dir, "ballast"))
			for err == nil {
				_, err = f.Write(make([]byte, 4096))
			}
			f.Close()
			if errors.Is(err, unix.ENOSPC) {
				return nil
			}
			return err
		},
		repair: func(dir string) error { return os.Remove(filepath.Join(dir, "ballast")) },
	},
	"no inodes": {
		damage: func(dir string) (err error) {
			for i := 0; err == nil; i++ {
				err = os.Mkdir(filepath.Join(dir, fmt.Sprint("ballast", i)), 0o700)
			}
			if errors.Is(err, unix.ENOSPC) {
				return nil
			}
			return err
		},
		repair: func(dir string) error {
			all, err := filepath.Glob(filepath.Join(dir, "ballast*"))
			for _, b := range all {
				err = errors.Join(err, os.Remove(b))
			}
			return err
		},
	},
	"read-only": {
		damage: func(dir string) error { return unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, "") },
		locks:  true,
		repair: func(dir string) error { return unix.Mount("", dir, "", unix.MS_REMOUNT, "size=128k,nr_inodes=100") },
	},
}

// ADD fails with a matching code and leaves nothing if the file system of a state directory is full
// or read-only, and DEL succeeds. After it is repaired ADD succeeds.
func TestKernelDisk(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	for _, at := range []string{"bridge leases", "cni-exec leases", "cni-exec cni", "cni-exec ports", "cni-exec tuning"} {
		for fault, f := range diskFaults {
			t.Run(at+" "+fault, func(t *testing.T) {
				t.Parallel()
				who, name, _ := strings.Cut(at, " ")
				w := newWorld(t)
				w.write("net.d/demo.conflist", killList)
				c, other := w.Container("ctr"), w.Container("other")
				w.onDisk(name, func() { w.onDamagedDisk(victims[who], f, name, c, other) })
			})
		}
	}
}

// onDamagedDisk runs on the thread that sees the tmpfs.
func (w *world) onDamagedDisk(v victim, f diskFault, name string, c, other applettest.Container) {
	dir := w.Path(name)
	w.must("other ADD", v.add(w, other, 8000))
	if err := f.damage(dir); err != nil {
		w.Fatal(err)
	}
	before := w.Snapshot(c)
	a := v.add(w, c, 8080)
	if code := a.code(w.T); code != spec.CodeIO && code != spec.CodeTryAgain {
		w.Errorf("ADD: code %d: %s%s", code, a.stdout, a.stderr)
	}
	w.Same("failed ADD", before, w.Snapshot(c))
	if del := v.del(w, c, 8080); !f.locks || name != "cni" || del.code(w.T) != spec.CodeIO {
		w.must("DEL", del)
	}
	w.Same("DEL", before, w.Snapshot(c))
	if err := f.repair(dir); err != nil {
		w.Fatal(err)
	}
	w.must("ADD on a good disk", v.add(w, c, 8080))
	w.must("DEL on a good disk", v.del(w, c, 8080))
	w.must("other DEL", v.del(w, other, 8000))
}

// Unusual files and files of other programs where ours are expected: no verb blocks on them,
// follows a link or deletes them, and errors have a code.
func TestKernelUnusualFiles(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	a := spec.Attachment{Network: "demo", ContainerID: "ctr", IfName: "eth0"}
	places := []string{"cni", "cni/results", "cni/results/demo-ctr-eth0", "cni/cnibox/locks", "cni/cnibox/locks/network-demo", "cni/cnibox/locks/container-ctr",
		"leases", "leases/demo", "leases/demo/lock",
		"leases/demo/10.1.0.2", "ports", "ports/" + a.Key() + ".json", "tuning", "tuning/" + a.Key() + ".json", "tuning/" + a.Key() + ".json.tmp",
		"tuning/ctr_eth0.json", "tuning/ctr_eth0.json.tmp"}
	w := newWorld(t)
	w.write("net.d/demo.conflist", killList)
	c := w.Container("ctr")
	v := victims["cni-exec"]
	v.add(w, c, 8080) // creates the bridge and what else stays
	w.must("DEL", v.del(w, c, 8080))
	kinds := maps.Clone(oddFiles)
	kinds["link to a directory"] = func(path string) error { return os.Symlink(w.Path("outside"), path) }
	kinds["link to a file"] = func(path string) error { return os.Symlink(w.Path("outside/full"), path) }
	for _, place := range places {
		for kind, mk := range kinds {
			t.Run(place+" "+kind, func(t *testing.T) { w.on(t).checkUnusualFile(v, c, place, mk) })
		}
	}
}

// checkUnusualFile tests one of them.
func (w *world) checkUnusualFile(v victim, c applettest.Container, place string, mk func(string) error) {
	path := w.Path(place)
	for _, dir := range []string{"cni", "leases", "ports", "tuning", "outside"} {
		if err := os.RemoveAll(w.Path(dir)); err != nil {
			w.Fatal(err)
		}
	}
	w.write("outside/full", "not ours")
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = mk(path)
	}
	if err != nil {
		w.Fatal(err)
	}
	host, cont := kerneltest.Snapshot(w.T, w.NS), kerneltest.Snapshot(w.T, c.NS)
	for i, do := range []func(*world, applettest.Container, int, ...string) answer{v.add, v.del, v.del} {
		what := fmt.Sprint("call ", i)
		if a := do(w, c, 8080); a.code(w.T) == spec.CodeInternal {
			w.Errorf("%s: %s%s", what, a.stdout, a.stderr)
		}
	}
	if after := kerneltest.Snapshot(w.T, w.NS) + kerneltest.Snapshot(w.T, c.NS); after != host+cont {
		w.Errorf("it is not as before:\n%s", kerneltest.Diff(host+cont, after))
	}
	if b, err := os.ReadFile(w.Path("outside/full")); err != nil || string(b) != "not ours" {
		w.Errorf("what is not ours: %q, %v", b, err)
	}
}
