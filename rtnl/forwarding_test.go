package rtnl_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
)

// netlink and the files below /proc/sys report the same settings.
func TestKernelSettings(t *testing.T) {
	ns := kerneltest.NS(t)
	c := kerneltest.Dial(t, ns)
	if err := c.AddLink(rtnl.LinkSpec{Name: "v1", Peer: &rtnl.LinkSpec{Name: "v2"}}); err != nil {
		t.Fatal(err)
	}
	link := func() *rtnl.Link {
		l, err := c.Link("v1")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	forwards := func(family uint8) func() bool {
		return func() bool {
			on, err := c.Forwards(family)
			if err != nil {
				t.Fatal(err)
			}
			return on
		}
	}
	for key, reported := range map[string]func() bool{
		"net/ipv4/ip_forward":             forwards(unix.AF_INET),
		"net/ipv6/conf/all/forwarding":    forwards(unix.AF_INET6),
		"net/ipv4/conf/v1/route_localnet": func() bool { return link().RouteLocalnet },
		"net/ipv6/conf/v1/accept_ra":      func() bool { return link().AcceptRA != 0 },
	} {
		for _, on := range []bool{true, false, true} {
			value := "0"
			if on {
				value = "1"
			}
			if err := ns.SetSysctl(key, value); err != nil {
				t.Fatal(err)
			}
			if got := reported(); got != on {
				t.Errorf("%s is %s, netlink says %t", key, value, got)
			}
		}
	}
}

// A family that the kernel lacks is an error, not disabled forwarding.
func TestKernelForwardsUnknownFamily(t *testing.T) {
	c := kerneltest.Dial(t, kerneltest.NS(t))
	if on, err := c.Forwards(unix.AF_BLUETOOTH); err == nil {
		t.Errorf("got %t, want an error", on)
	}
}
