//go:build !no_loopback

package applets_test

import (
	"bytes"
	"context"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"cnibox/applets"
	"cnibox/applets/applet"
	"cnibox/internal/kerneltest"
	"cnibox/rtnl"
)

// loopback calls the plugin for a namespace.
func loopback(t *testing.T, verb, netns string) (code int, stdout string) {
	t.Helper()
	a, ok := applets.Lookup("loopback")
	if !ok {
		t.Fatal("no loopback")
	}
	env := map[string]string{"CNI_COMMAND": verb, "CNI_CONTAINERID": "ctr1", "CNI_NETNS": netns, "CNI_IFNAME": "eth0"}
	var out bytes.Buffer
	code = applet.Serve(context.Background(), a, applet.Process{
		Applets: applets.All(),
		Getenv:  func(k string) string { return env[k] }, Stdout: &out, Stderr: &out,
		Stdin: strings.NewReader(`{"cniVersion":"0.3.1","name":"cni-loopback","type":"loopback"}`),
	})
	return code, out.String()
}

func loIsUp(t *testing.T, c *rtnl.Conn) bool {
	t.Helper()
	lo, err := c.Link("lo")
	if err != nil {
		t.Fatal(err)
	}
	return lo.Up
}

// Whoever still has an interface in the namespace still talks to localhost.
func TestKernelLoopbackDelKeepsLoForOthers(t *testing.T) {
	ns := kerneltest.NS(t)
	c, path := kerneltest.Dial(t, ns), kerneltest.NSPath(t, ns)
	if code, out := loopback(t, "ADD", path); code != 0 {
		t.Fatal(out)
	}
	if err := c.AddLink(rtnl.LinkSpec{Name: "eth0", Up: true, Peer: &rtnl.LinkSpec{Name: "peer"}}); err != nil {
		t.Fatal(err)
	}
	if code, out := loopback(t, "DEL", path); code != 0 || !loIsUp(t, c) {
		t.Errorf("with eth0: got exit code %d, lo up %t: %s", code, loIsUp(t, c), out)
	}
	if err := c.DelLink("eth0"); err != nil {
		t.Fatal(err)
	}
	if code, out := loopback(t, "DEL", path); code != 0 || loIsUp(t, c) {
		t.Errorf("alone: got exit code %d, lo up %t: %s", code, loIsUp(t, c), out)
	}
}

// An address that is no loopback address is found before lo is changed.
func TestKernelLoopbackForeignAddress(t *testing.T) {
	ns := kerneltest.NS(t)
	c := kerneltest.Dial(t, ns)
	lo, err := c.Link("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.AddAddr(lo.Index, rtnl.Addr{Prefix: netip.MustParsePrefix("10.9.9.9/32")}); err != nil {
		t.Fatal(err)
	}
	code, out := loopback(t, "ADD", kerneltest.NSPath(t, ns))
	if code != 1 || !strings.Contains(out, "non-loopback address: 10.9.9.9/32") || !strings.Contains(out, `"code": 8`) {
		t.Errorf("got exit code %d, %s", code, out)
	}
	if loIsUp(t, c) {
		t.Error("lo is up after an error")
	}
}

// containerd adds loopback and the pod's networks at the same moment.
func TestKernelLoopbackAtOnce(t *testing.T) {
	ns := kerneltest.NS(t)
	c, path := kerneltest.Dial(t, ns), kerneltest.NSPath(t, ns)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if code, out := loopback(t, "ADD", path); code != 0 {
				t.Error(out)
			}
		})
	}
	wg.Go(func() {
		if err := c.AddLink(rtnl.LinkSpec{Name: "eth0", Up: true, Peer: &rtnl.LinkSpec{Name: "peer"}}); err != nil {
			t.Error(err)
		}
	})
	wg.Wait()
	if !loIsUp(t, c) {
		t.Error("lo is down")
	}
}
