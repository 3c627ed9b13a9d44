package dhcp

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cnibox/internal/kerneltest"
	"cnibox/rtnl"
	"cnibox/spec"
)

// Without a lease msg has the phrases of the reference. Its tests compare the first.
func TestKernelDHCPWithoutLease(t *testing.T) {
	socket, stop := startDHCP(t, "-resendtimeout", "300ms")
	ns := kerneltest.NS(t)
	c := kerneltest.Dial(t, ns)
	if err := c.AddLink(rtnl.LinkSpec{Name: "eth0", Peer: &rtnl.LinkSpec{Name: "port0"}}); err != nil {
		t.Fatal(err)
	}
	// The kernel detects the missing carrier some time after a link was set up.
	eth0, err := c.Link("eth0")
	if err == nil {
		err = c.SetLink(eth0.Index, rtnl.LinkChange{Up: new(true)})
	}
	if err != nil {
		t.Fatal(err)
	}
	kerneltest.Eventually(t, "eth0 not running", func() error { // since its peer is down
		eth0, err := c.Link("eth0")
		if err == nil && eth0.Flags&unix.IFF_RUNNING != 0 {
			err = fmt.Errorf("%+v", eth0)
		}
		return err
	})
	conf := `{"cniVersion":"1.1.0","name":"net","type":"x","ipam":{"type":"dhcp","daemonSocketPath":"` + socket + `"}}`
	r, err := spec.NewRequest(spec.Call{Verb: spec.Add, ContainerID: "ctr", IfName: "eth0", NetNS: kerneltest.NSPath(t, ns)}, []byte(conf))
	if err != nil {
		t.Fatal(err)
	}
	refused := func(msg, details string) {
		t.Helper()
		_, err := add(t.Context(), r)
		if e := spec.AsError(err); e == nil || e.Code != spec.CodeTryAgain || e.Msg != msg || !strings.Contains(e.Details, details) {
			t.Errorf("got %#v, want %q and %q", e, msg, details)
		}
	}
	refused("error calling DHCP.Allocate: no more tries", "eth0 has no carrier: ")
	port, err := c.Link("port0")
	if err == nil {
		err = c.SetLink(port.Index, rtnl.LinkChange{Up: new(true)})
	}
	if err != nil {
		t.Fatal(err)
	}
	kerneltest.Eventually(t, "port0 up", func() error {
		port, err := c.Link("port0")
		if err == nil && !port.OperUp {
			err = fmt.Errorf("%+v", port)
		}
		return err
	})
	refused("error calling DHCP.Allocate: no more tries", "no server answered on eth0: ")
	stop()
	_, err = add(t.Context(), r)
	if e := spec.AsError(err); e == nil || e.Code != spec.CodeTryAgain || !strings.Contains(e.Details, socket+": start it with `cnibox dhcp daemon`") {
		t.Errorf("without a daemon: %#v", e)
	}
}
