// Package loopback is the CNI plugin loopback: brings up lo inside the container.
package loopback

import (
	"context"
	"errors"
	"os"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/attach"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// Applet is the plugin.
var Applet = applet.Applet{
	Name:    "loopback",
	Summary: "brings up lo inside the container",
	Help: `
No keys of its own. The interface is always lo; CNI_IFNAME is ignored.

ADD may be repeated, also while other networks are added to the namespace. In a chain, prevResult
is passed on unchanged.
DEL sets lo down unless another interface of the namespace is up.`,
	Plugin: func() spec.Plugin {
		return spec.Plugin{Add: add, Get: get, Check: check, Del: del, Restore: restore, Facts: spec.Facts{OpensNetNS: true}}
	},
}

// inside calls fn with the request's namespace, a socket in it and its lo, which every namespace
// has.
func inside(r *spec.Request, fn func(ns *netns.NS, c *rtnl.Conn, lo *rtnl.Link) error) error {
	ns, err := r.Call.OpenNS()
	if err != nil {
		return err
	}
	c, err := rtnl.In(r.Call.Session, ns)
	if err != nil {
		return err
	}
	lo, err := c.Link("lo")
	if err != nil {
		return err
	}
	return fn(ns, c, lo)
}

// add checks the addresses before it changes anything, and again afterwards: the kernel adds
// 127.0.0.1 and ::1 when lo comes up. It may run concurrently with the ADD of another network in
// the namespace.
func add(_ context.Context, r *spec.Request) (res *spec.Result, err error) {
	err = inside(r, func(_ *netns.NS, c *rtnl.Conn, lo *rtnl.Link) error {
		if res, err = resultOf(r, c, lo); err != nil || lo.Up {
			return err
		}
		if err := setUp(c, lo); err != nil {
			return err
		}
		res, err = resultOf(r, c, lo)
		return err
	})
	return res, err
}

func setUp(c *rtnl.Conn, lo *rtnl.Link) error {
	return c.Do(rtnl.ChangeLink(lo.Index, rtnl.LinkChange{Up: new(true)}))
}

// restore sets lo up again.
func restore(_ context.Context, r *spec.Request) error {
	return inside(r, func(_ *netns.NS, c *rtnl.Conn, lo *rtnl.Link) error {
		if lo.Up {
			return nil
		}
		err := setUp(c, lo)
		if err == nil {
			r.Did("lo up")
		}
		return err
	})
}

// get returns the result of ADD. A lo that is down was not added, or was deleted: code 3.
func get(_ context.Context, r *spec.Request) (res *spec.Result, err error) {
	err = inside(r, func(_ *netns.NS, c *rtnl.Conn, lo *rtnl.Link) error {
		if !lo.Up {
			return spec.Errorf(spec.CodeUnknown, "lo is down in %s: nothing was added", r.Call.NetNS)
		}
		res, err = resultOf(r, c, lo)
		return err
	})
	return res, err
}

// check checks that lo is up and matches its entry in prevResult. In a chain it may have none.
func check(_ context.Context, r *spec.Request) error {
	return inside(r, func(ns *netns.NS, c *rtnl.Conn, lo *rtnl.Link) error {
		if !lo.Up {
			return attach.Mismatch("loopback interface is down: lo in %s", r.Call.NetNS)
		}
		have, err := c.Addrs(lo.Index)
		if err != nil {
			return err
		}
		elsewhere := false
		for i, ifc := range r.Prev.Interfaces {
			switch {
			case ifc.Name != lo.Name || ifc.Sandbox == "":
			case ns.IsAt(ifc.Sandbox):
				return compare(r.Prev, i, lo, have)
			default:
				elsewhere = true
			}
		}
		if elsewhere {
			return attach.Mismatch("prevResult has no interface %q in sandbox %q", lo.Name, r.Call.NetNS)
		}
		return nil
	})
}

// compare compares lo with the interface of a result.
func compare(res *spec.Result, i int, lo *rtnl.Link, have []rtnl.Addr) error {
	for _, ip := range res.IPs {
		if ip.Interface != nil && *ip.Interface == i && !attach.HasAddr(have, ip.Address) {
			return attach.Mismatch("interface %s does not have address %s", lo.Name, ip.Address)
		}
	}
	return attach.CheckMAC(lo, res.Interfaces[i].MAC)
}

// del does nothing without a namespace.
func del(_ context.Context, r *spec.Request) error {
	err := inside(r, func(_ *netns.NS, c *rtnl.Conn, lo *rtnl.Link) error {
		links, err := c.Links()
		if err != nil {
			return err
		}
		for _, l := range links {
			if l.Up && l.Index != lo.Index {
				return nil
			}
		}
		down := false
		return c.Do(rtnl.ChangeLink(lo.Index, rtnl.LinkChange{Up: &down}))
	})
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, netns.ErrNotNS) {
		return nil
	}
	return err
}

// resultOf returns prevResult, or else lo with the first address of each family. Like the reference
// it refuses an address that is not a loopback address.
func resultOf(r *spec.Request, c *rtnl.Conn, lo *rtnl.Link) (*spec.Result, error) {
	addrs, err := c.Addrs(lo.Index)
	if err != nil {
		return nil, err
	}
	// a result does not have the MTU of lo, 65536, which is above its maximum
	res := &spec.Result{Interfaces: []spec.Interface{{Name: lo.Name, MAC: lo.MAC.String(), Sandbox: r.Call.NetNS}}}
	var seen4, seen6 bool
	for _, a := range addrs {
		if !a.Prefix.Addr().IsLoopback() {
			return nil, spec.Errorf(spec.CodeNetNS, "loopback interface has a non-loopback address: %s", a.Prefix)
		}
		seen := &seen6
		if a.Prefix.Addr().Is4() {
			seen = &seen4
		}
		if !*seen {
			*seen = true
			res.IPs = append(res.IPs, spec.IP{Address: a.Prefix, Interface: new(int)})
		}
	}
	if r.Prev != nil {
		return r.Prev, nil
	}
	return res, nil
}
