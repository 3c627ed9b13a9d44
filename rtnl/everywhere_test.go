package rtnl_test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
)

// EachNS finds a namespace that only a socket keeps alive, by the ID that the host has given to it,
// with its links and addresses, and does not find it any more when the socket is closed.
func TestKernelEachNSBySocket(t *testing.T) {
	host, cont, other := kerneltest.NS(t), kerneltest.NS(t), kerneltest.NS(t)
	h := kerneltest.Dial(t, host)
	create(t, h, rtnl.LinkSpec{Name: "up0", Kind: rtnl.Dummy{}, Up: true})
	c := kerneltest.Dial(t, cont) // the socket
	l := create(t, c, rtnl.LinkSpec{Name: "eth0", Kind: rtnl.Dummy{}, Up: true})
	addr := netip.MustParsePrefix("10.1.0.2/24")
	if err := c.AddAddr(l.Index, rtnl.Addr{Prefix: addr}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time it has one
		if err := h.NameNS(cont); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.NameNS(other); err != nil {
		t.Fatal(err)
	}
	cont.Close()
	search := func() (found []string) {
		t.Helper()
		err := host.Do(func() error {
			hidden, err := rtnl.EachNS(func(n *rtnl.Namespace) error {
				for _, l := range n.Links {
					if slices.ContainsFunc(n.Addrs[l.Index], func(a rtnl.Addr) bool { return a.Prefix == addr }) {
						found = append(found, l.Name+" in "+n.Path)
					}
				}
				return nil
			})
			if hidden.Named != "" {
				t.Error(hidden)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if found := search(); len(found) != 1 || !strings.HasPrefix(found[0], "eth0 in a network namespace without a path") {
		t.Errorf("found %q", found)
	}
	c.Close()
	kerneltest.Until(t, "its end", func() bool { return len(search()) == 0 })
	if id, err := h.NSID(other); err != nil || id < 0 {
		t.Errorf("the other one has ID %d, %v", id, err)
	}
}

// In a user namespace a namespace of the host that cannot be entered hides nothing.
func TestKernelEachNSOfHost(t *testing.T) {
	if os.Getenv("CNIBOX_EACH") != "" {
		hidden, err := rtnl.EachNS(func(*rtnl.Namespace) error { return nil })
		fmt.Printf("hidden: %q, %v\n", hidden.String(), err)
		return
	}
	file := filepath.Join(t.TempDir(), "ns")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := kerneltest.NS(t).Bind(file); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netns.Unbind(file) })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("unshare", "--user", "--map-root-user", "--net", self, "-test.run", "^TestKernelEachNSOfHost$")
	c.Env = append(os.Environ(), "CNIBOX_EACH=1")
	out, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(out), `hidden: "", <nil>`) {
		t.Errorf("%v: %s", err, out)
	}
}
