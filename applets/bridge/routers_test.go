package bridge_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/fault"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// behindRouter returns a host with the link up0 to a router, and the router.
func behindRouter(t *testing.T) (h *applettest.Host, router applettest.Container) {
	t.Helper()
	h = applettest.NewHost(t)
	router = h.Container("router")
	for _, ns := range []interface{ SetSysctl(key, value string) error }{h.NS, router.NS} {
		h.NoError(ns.SetSysctl("net/ipv6/conf/default/accept_dad", "0"))
	}
	kerneltest.AddLink(t, h.NS, rtnl.LinkSpec{Name: "up0", Up: true, Peer: &rtnl.LinkSpec{Name: "eth0", NS: router.NS}})
	kerneltest.Address(t, router.NS, "eth0", "fd00:99::1/64")
	return h, router
}

// learn sends advertisements until a link of the host has a default route of them.
func learn(t *testing.T, h *applettest.Host, router applettest.Container, link string) {
	t.Helper()
	kerneltest.Eventually(t, "default route of a router advertisement", func() error {
		advertise(t, router, false)
		if !learned(t, h, link) {
			return fmt.Errorf("%s has none", link)
		}
		return nil
	})
}

func learned(t *testing.T, h *applettest.Host, link string) bool {
	t.Helper()
	c := kerneltest.Dial(t, h.NS)
	index := kerneltest.Link(t, c, link).Index
	routes, err := c.Routes(rtnl.RouteFilter{Dst: netip.MustParsePrefix("::/0"), Link: index})
	h.NoError(err)
	return slices.ContainsFunc(routes, func(r rtnl.Route) bool { return r.Protocol == unix.RTPROT_RA })
}

// forget deletes the learned default routes of a link.
func forget(t *testing.T, h *applettest.Host, link string) {
	t.Helper()
	c := kerneltest.Dial(t, h.NS)
	for learned(t, h, link) {
		h.NoError(c.Do(rtnl.DropRoute(rtnl.Route{Dst: netip.MustParsePrefix("::/0"), Link: kerneltest.Link(t, c, link).Index})))
	}
}

// Switching IPv6 forwarding on leaves the default routes that the host has learned from routers, and it goes on learning
// them, also on a link that had none yet.
func TestKernelForwardingKeepsLearnedRoutes(t *testing.T) {
	for _, before := range []bool{true, false} {
		h, router := behindRouter(t)
		if before {
			learn(t, h, router, "up0")
		}
		p := h.Container("ctr")
		h.Must(spec.Add, "bridge", applettest.GatewayConf, p)
		if v, err := h.NS.Sysctl("net/ipv6/conf/up0/forwarding"); err != nil || v != "1" {
			t.Fatalf("forwarding of up0 is %q, %v", v, err)
		}
		if before && !learned(t, h, "up0") {
			t.Error("ADD has taken the default route away")
		}
		forget(t, h, "up0")
		learn(t, h, router, "up0")
		if v, err := h.NS.Sysctl("net/ipv6/conf/br0/accept_ra"); err != nil || v != "0" {
			t.Errorf("accept_ra of br0 is %q, %v", v, err)
		}
	}
}

// A bridge through which the host has learned its default route keeps it, and ADD warns.
func TestKernelUplinkBridgeKeepsLearnedRoute(t *testing.T) {
	h, router := behindRouter(t)
	c := kerneltest.Dial(t, h.NS)
	kerneltest.NeedKind(t, "CONFIG_BRIDGE", rtnl.Bridge{})
	br := kerneltest.AddLink(t, h.NS, rtnl.LinkSpec{Name: "br0", Kind: rtnl.Bridge{}, Up: true}).Index
	h.NoError(c.SetLink(kerneltest.Link(t, c, "up0").Index, rtnl.LinkChange{Master: &br}))
	learn(t, h, router, "br0")
	var warned strings.Builder
	h.Stderr = &warned
	h.Must(spec.Add, "bridge", applettest.GatewayConf, h.Container("ctr"))
	if !learned(t, h, "br0") || !strings.Contains(warned.String(), "router advertisement") {
		t.Errorf("learned: %t, warned: %s", learned(t, h, "br0"), &warned)
	}
	forget(t, h, "br0")
	learn(t, h, router, "br0")
}

// An ADD that fails after it has switched forwarding on restores the settings of each link, and what IPv4 forwarding has
// changed besides.
func TestKernelForwardingUndone(t *testing.T) {
	h, router := behindRouter(t)
	learn(t, h, router, "up0")
	settings := map[string]string{
		"net/ipv4/conf/up0/forwarding": "1", "net/ipv4/conf/default/forwarding": "1", "net/ipv4/conf/all/accept_redirects": "0",
		"net/ipv6/conf/up0/accept_ra": "1", "net/ipv6/conf/up0/forwarding": "0", "net/ipv6/conf/lo/forwarding": "1", "net/ipv6/conf/default/forwarding": "1",
	}
	for key, value := range settings {
		if key != "net/ipv6/conf/lo/forwarding" {
			h.NoError(h.NS.SetSysctl(key, value))
		}
	}
	h.NoError(h.NS.SetSysctl("net/ipv6/conf/up0/accept_ra", "2")) // lo's forwarding takes learned routes away, too
	h.NoError(h.NS.SetSysctl("net/ipv6/conf/lo/forwarding", "1"))
	h.NoError(h.NS.SetSysctl("net/ipv6/conf/up0/accept_ra", "1"))
	p := h.Container("ctr")
	before := h.Snapshot(p)
	on := false
	fault.Hook = func(what string) error {
		if on = on || strings.HasPrefix(what, "sysctl net/ipv6/conf/up0/accept_ra = 2"); what == "sysctl net/ipv6/conf/all/forwarding = 1" {
			return errors.New("made to fail")
		}
		return nil
	}
	code, out := h.Call(spec.Add, "bridge", applettest.GatewayConf, p)
	if fault.Hook = nil; code == 0 || !on {
		t.Fatalf("got %d %s, accept_ra set: %t", code, out, on)
	}
	h.Same("ADD that fails", before, h.Snapshot(p))
	for key, want := range settings {
		if got, err := h.NS.Sysctl(key); err != nil || got != want {
			t.Errorf("%s is %q, %v, want %s", key, got, err, want)
		}
	}
	if !learned(t, h, "up0") {
		t.Error("the learned default route is gone")
	}
}
