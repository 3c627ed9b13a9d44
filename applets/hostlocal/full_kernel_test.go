package hostlocal_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/state"
)

// A cachedHost is a leaseHost with the cache of a runtime.
type cachedHost struct {
	leaseHost
	cache chain.Cache
}

// entry writes the cache entry of a container as a runtime does after ADD.
func (h cachedHost) entry(t *testing.T, id, path string, ns netns.ID, bootID string) {
	t.Helper()
	e := &chain.Entry{ContainerID: id, IfName: "eth0", NetworkName: "demo", NetNS: path, BootID: bootID}
	if ns != (netns.ID{}) {
		e.NetNSID = ns.String()
	}
	err := h.cache.Begin(e)
	if err == nil {
		err = h.cache.Finish(e, []byte(`{"cniVersion":"1.1.0"}`))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// mountNS creates a network namespace with an address, to which only the path refers. end deletes
// it.
func (h cachedHost) mountNS(t *testing.T, name, addr string) (path string, id netns.ID, end func() error) {
	t.Helper()
	ns := kerneltest.NS(t)
	kerneltest.Address(t, ns, "lo", addr)
	path = filepath.Join(h.dir, name)
	if err := errors.Join(os.WriteFile(path, nil, 0o600), unix.Mount(fmt.Sprintf("/proc/self/fd/%d", ns.FD()), path, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	id, err := ns.ID()
	if err != nil {
		t.Fatal(err)
	}
	ns.Close()
	end = func() error { return errors.Join(netns.Unbind(path), os.RemoveAll(path)) }
	t.Cleanup(func() { end() })
	return path, id, end
}

// If the pool is full, ADD releases the leases whose namespaces are gone, and no others.
func TestKernelFullPoolReleasesGone(t *testing.T) {
	kerneltest.NS(t) // skips without privilege
	if kerneltest.OneUser() {
		t.Skip("SKIPPED: namespaces of other users, which may have the addresses, cannot be looked into from a user namespace")
	}
	dir := t.TempDir()
	h := cachedHost{leaseHost{filepath.Join(dir, "networks")}, chain.Cache{Dir: dir}}
	os.Mkdir(h.dir, 0o700)
	conf := h.conf(`,"subnet":"10.211.77.0/28"`, "") // 13 addresses from 10.211.77.2
	lease := func(id, addr string) { h.want(t, "ADD", id, conf, "", 0, `"`+addr+`/28"`) }
	status := func(code int) {
		t.Helper()
		h.want(t, "STATUS", "", conf, "", code, "")
	}
	other, _, _ := h.mountNS(t, "other", "10.211.78.1/24")

	lease("live", "10.211.77.2")
	path, id, _ := h.mountNS(t, "live", "10.211.77.2/28")
	h.entry(t, "live", path, id, state.BootID())

	lease("gone", "10.211.77.3")
	path, id, end := h.mountNS(t, "gone", "10.211.77.3/28")
	h.entry(t, "gone", path, id, state.BootID())
	gone, err := netns.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	kerneltest.Delete(t, end, gone)

	lease("unknown", "10.211.77.4") // without an entry: of another runtime

	// The path is gone, but a process is in the namespace.
	lease("process", "10.211.77.5")
	path, id, end = h.mountNS(t, "process", "10.211.77.5/28")
	h.entry(t, "process", path, id, state.BootID())
	ns, err := netns.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	sleep := exec.Command("sleep", "1000")
	if err := ns.Do(sleep.Start); err != nil {
		t.Fatal(err)
	}
	defer func() { sleep.Process.Kill(); sleep.Wait() }()
	ns.Close()
	end()

	// The path is gone, but the namespace has another mount.
	lease("mounted", "10.211.77.6")
	path, id, end = h.mountNS(t, "mounted", "10.211.77.6/28")
	second := filepath.Join(h.dir, "a second path")
	os.WriteFile(second, nil, 0o600)
	if err := unix.Mount(path, second, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer netns.Unbind(second)
	h.entry(t, "mounted", path, id, state.BootID())
	end()

	// The path leads to another namespace.
	lease("reused", "10.211.77.7")
	h.entry(t, "reused", other, netns.ID{Dev: 1, Ino: 1}, state.BootID())

	// Runtimes that do not record the identity: only the path is compared.
	lease("path", "10.211.77.8")
	h.entry(t, "path", other, netns.ID{}, "")
	lease("nopath", "10.211.77.9")
	h.entry(t, "nopath", filepath.Join(h.dir, "nothing"), netns.ID{}, "")

	// The lease is newer than the entry, so it is of another runtime.
	lease("older", "10.211.77.10")
	h.entry(t, "older", filepath.Join(h.dir, "nothing"), netns.ID{}, state.BootID())
	hourAgo := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(dir, "results", "demo-older-eth0"), hourAgo, hourAgo); err != nil {
		t.Fatal(err)
	}
	lease("boot", "10.211.77.11")
	h.entry(t, "boot", filepath.Join(h.dir, "nothing"), netns.ID{}, "another")

	// The namespace of an interrupted ADD counts as well. A broken entry is ignored.
	lease("adding", "10.211.77.12")
	if err := h.cache.Begin(&chain.Entry{ContainerID: "adding", IfName: "eth0", NetworkName: "demo", NetNS: other}); err != nil {
		t.Fatal(err)
	}
	lease("broken", "10.211.77.13")
	if err := os.WriteFile(filepath.Join(dir, "results", "demo-broken-eth0"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	lease("last", "10.211.77.14")
	status(0) // since three addresses can be released

	kept := strings.Replace(conf, `"subnet"`, `"keepAcrossBoots":true,"subnet"`, 1)
	h.want(t, "ADD", "new", kept, "", 101, "every address")
	code, out := h.run(t, "ADD", "new", conf, "")
	for _, want := range []string{
		`"address": "10.211.77.3/28"`,
		"the addresses of network demo are used up: 10.211.77.3 is freed, as the network namespace of container gone, interface eth0 is gone",
		"10.211.77.7 is freed", "10.211.77.9 is freed",
	} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("got %d %s, want %s", code, out, want)
		}
	}
	if n := strings.Count(out, "is freed"); n != 3 {
		t.Errorf("%d leases are freed:\n%s", n, out)
	}
	h.want(t, "ADD", "new1", conf, "", 0, "10.211.77.7/28")
	h.want(t, "DEL", "gone", conf, "", 0, "") // a late DEL: new has the address
	h.want(t, "ADD", "new2", conf, "", 0, "10.211.77.9/28")
	h.want(t, "ADD", "new3", conf, "", 101, "every address")
	status(50)
	for _, id := range []string{"live", "unknown", "process", "mounted", "path", "older", "boot", "adding", "broken", "last", "new"} {
		h.want(t, "GET", id, conf, "", 0, `"ips"`)
	}
}
