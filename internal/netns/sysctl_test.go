package netns_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/fault"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
)

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("got error %v, want %v", err, want)
	}
}

func TestKernelSysctl(t *testing.T) {
	ns, other := kerneltest.NS(t), kerneltest.NS(t)
	c := kerneltest.Dial(t, ns)
	if err := c.AddLink(rtnl.LinkSpec{Name: "a.b", Peer: &rtnl.LinkSpec{}}); err != nil {
		t.Fatal(err)
	}
	err := ns.SetSysctls(
		netns.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"},
		netns.Sysctl{Key: "net/ipv4/conf/a.b/arp_notify", Value: "1"},
		netns.Sysctl{Key: "net/ipv4/ip_local_port_range", Value: "2000 3000"})
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]string{
		"net/ipv4/ip_forward": "1", "net/ipv4/conf/a.b/arp_notify": "1", "net/ipv4/ip_local_port_range": "2000\t3000",
	}
	for key, want := range tests {
		if got, err := ns.Sysctl(key); got != want || err != nil {
			t.Errorf("%s: got %q, %v; want %q", key, got, err, want)
		}
	}
	if got, err := other.Sysctl("net/ipv4/ip_forward"); got != "0" || err != nil {
		t.Errorf("another namespace: got %q, %v", got, err)
	}
	_, err = ns.Sysctl("net/ipv4/none")
	wantErr(t, err, os.ErrNotExist)
	wantErr(t, ns.SetSysctl("net/ipv4/none", "1"), os.ErrNotExist)
	if err := ns.SetSysctls(netns.Sysctl{Key: "net/ipv4/none", Value: "1", Optional: true}); err != nil {
		t.Errorf("optional: %v", err)
	}
	wantErr(t, ns.SetSysctl("net/ipv4/ip_forward", "word"), unix.EINVAL)
}

// A sysctl that has the value already, apart from white space, is not written, so that /proc may be
// read-only.
func TestKernelSysctlWritesOnlyChanges(t *testing.T) {
	ns := kerneltest.NS(t)
	var writes []string
	fault.Hook = func(what string) error {
		writes = append(writes, what)
		return unix.EROFS
	}
	defer func() { fault.Hook = nil }()
	old, err := ns.Sysctl("net/ipv4/ip_local_port_range")
	if err != nil {
		t.Fatal(err)
	}
	err = ns.SetSysctl("net/ipv4/ip_local_port_range", strings.ReplaceAll(old, "\t", "  ")+"\n")
	if err != nil || len(writes) != 0 {
		t.Errorf("got error %v, writes %q", err, writes)
	}
	wantErr(t, ns.SetSysctl("net/ipv4/ip_forward", "1"), unix.EROFS)
	if err := ns.SetSysctls(netns.Sysctl{Key: "net/ipv4/ip_forward", Value: "1", Optional: true}); err != nil {
		t.Errorf("optional: %v", err)
	}
	if v, err := ns.Sysctl("net/ipv4/ip_forward"); v != "0" || err != nil {
		t.Errorf("after the fault: got %q, %v", v, err)
	}
}

func TestBadSysctlKeys(t *testing.T) {
	here := netns.Host()
	for _, key := range []string{
		"", "net", "net/", "/net/ipv4/ip_forward", "kernel/hostname", "net/../kernel/hostname", "net//ipv4/ip_forward",
		"net/ipv4/ip_forward/", "net/ipv4/./ip_forward", "../../etc/passwd", "net/ipv4/ip_forward\x00", "net.ipv4.ip_forward",
	} {
		if v, err := here.Sysctl(key); !errors.Is(err, unix.EINVAL) {
			t.Errorf("read %q: got %q, %v", key, v, err)
		}
		wantErr(t, here.SetSysctl(key, "0"), unix.EINVAL)
	}
	wantErr(t, here.SetSysctl("net/ipv4", "0"), unix.EISDIR)
}
