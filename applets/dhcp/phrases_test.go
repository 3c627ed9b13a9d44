package dhcp

import (
	"strings"
	"testing"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// Without a lease msg has the phrases of the reference. Its tests compare the first.
func TestKernelDHCPWithoutLease(t *testing.T) {
	socket, stop := startDHCP(t, "-resendtimeout", "300ms")
	ns := kerneltest.NS(t)
	c := kerneltest.Dial(t, ns)
	if err := c.AddLink(rtnl.LinkSpec{Name: "eth0", Peer: &rtnl.LinkSpec{Name: "port0"}}); err != nil {
		t.Fatal(err)
	}
	kerneltest.Address(t, ns, "eth0")
	kerneltest.WaitDown(t, ns, "eth0") // since its peer is down
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
	kerneltest.Address(t, ns, "port0")
	kerneltest.WaitUp(t, ns, "eth0")
	refused("error calling DHCP.Allocate: no more tries", "no server answered on eth0: ")
	stop()
	_, err = add(t.Context(), r)
	if e := spec.AsError(err); e == nil || e.Code != spec.CodeTryAgain || !strings.Contains(e.Details, socket+": start it with `cnibox dhcp daemon`") {
		t.Errorf("without a daemon: %#v", e)
	}
}
