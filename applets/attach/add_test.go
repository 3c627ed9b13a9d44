package attach_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/applets/attach"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// ADD runs the steps in their order, each with the preconditions met.
func TestKernelAddOrder(t *testing.T) {
	f := newFake(t)
	f.instead["routes"] = func(*attach.Op, *driver) error { return nil }
	f.before = func(step string, op *attach.Op) {
		link, err := op.Cont.Link("eth0")
		switch step {
		case "link":
			if err == nil {
				t.Error("link: the link is there already")
			}
		case "gateways":
			if err != nil || link.Up || len(op.Result.IPs) != 1 {
				t.Errorf("gateways: link %+v, %v; addresses %v", link, err, op.Result.IPs)
			}
		case "host":
			addrs, aerr := op.Cont.Addrs(op.Link.Index)
			routes, rerr := op.Cont.Routes(rtnl.RouteFilter{Link: op.Link.Index})
			if err := errors.Join(err, aerr, rerr); err != nil || !link.Up || len(addrs) == 0 || len(routes) < 2 {
				t.Errorf("host: link %+v, addresses %v, routes %v, %v", link, addrs, routes, err)
			}
		}
	}
	res, err := f.call(t.Context(), spec.Add, f.plugin(), "")
	if err != nil {
		t.Fatal(err)
	}
	f.wantSteps("link, lease ADD, gateways, routes, host")
	if len(res.Interfaces) != 1 || res.Interfaces[0].Name != "eth0" || res.Interfaces[0].Sandbox != f.Cont.Path ||
		len(res.IPs) != 1 || *res.IPs[0].Interface != 0 || len(res.Routes) != 1 {
		t.Errorf("result: %+v", res)
	}
	link, err := kerneltest.Dial(t, f.Cont.NS).Link("eth0")
	key := spec.Attachment{Network: "net", ContainerID: "ctr", IfName: "eth0"}.Key()
	if err != nil || spec.LabelKey(link.Alias) != key {
		t.Errorf("a link that DEL finds by its name has no label: %+v, %v", link, err)
	}
}

// If a step fails after its change, ADD reverts everything, releases a requested lease, and returns
// the error of the step.
func TestKernelAddUndone(t *testing.T) {
	for step, want := range map[string]string{
		"link":      "link",
		"lease ADD": "link, lease ADD",
		"gateways":  "link, lease ADD, gateways, lease DEL",
		"host":      "link, lease ADD, gateways, host, undo host, lease DEL",
	} {
		t.Run(step, func(t *testing.T) {
			f := newFake(t)
			before := f.state()
			f.fail[step] = spec.Errorf(spec.CodeBusy, "made to fail")
			_, err := f.call(t.Context(), spec.Add, f.plugin(), "")
			f.WantError(err, spec.CodeBusy, "made to fail")
			f.wantSteps(want)
			if after := f.state(); after != before {
				t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
			}
		})
	}
}

// If an external IPAM plugin fails ADD or does not answer, its DEL follows. No DEL follows the
// error for a second ADD, since it would release the first lease.
func TestKernelAddReleasesExternalLease(t *testing.T) {
	for name, tt := range map[string]struct {
		external bool
		err      error
		want     string
		leases   int
	}{
		"external":           {true, spec.Errorf(spec.CodeBusy, "made to fail"), "link, lease ADD, lease DEL", 0},
		"no answer":          {false, fmt.Errorf("killed: %w", spec.ErrNoAnswer), "link, lease ADD, lease DEL", 0},
		"external duplicate": {true, spec.Errorf(spec.CodeInternal, "192.0.2.5 has been allocated to ctr, duplicate allocation is not allowed"), "link, lease ADD", 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.leaves = tt.external
			f.fail["lease ADD"] = tt.err
			if _, err := f.call(t.Context(), spec.Add, f.plugin(), ""); err == nil {
				t.Error("ADD succeeds")
			}
			f.wantSteps(tt.want)
			if f.leases != tt.leases {
				t.Errorf("%d leases are left, want %d", f.leases, tt.leases)
			}
		})
	}
}

// An undo that fails is in details, and the remaining ones run.
func TestKernelAddUndoFails(t *testing.T) {
	f := newFake(t)
	before := f.state()
	f.fail["host"] = spec.Errorf(spec.CodeTryAgain, "no carrier")
	f.fail["undo host"] = errors.New("stuck")
	_, err := f.call(t.Context(), spec.Add, f.plugin(), "")
	e := spec.AsError(err)
	if e.Code != spec.CodeTryAgain || e.Msg != "no carrier" || e.Details != "undo link of the host: stuck" {
		t.Errorf("got %+v", e)
	}
	if after := f.state(); after != before {
		t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
	}
}

// ADD stops between two steps when its context ends, and undoes with a new context.
func TestKernelAddInterrupted(t *testing.T) {
	f := newFake(t)
	before := f.state()
	ctx, cancel := context.WithCancelCause(t.Context())
	f.before = func(step string, _ *attach.Op) {
		if step == "host" {
			cancel(errors.New("ended by SIGTERM"))
		}
	}
	_, err := f.call(ctx, spec.Add, f.plugin(), "")
	f.WantError(err, spec.CodeTryAgain, "ADD was interrupted: ended by SIGTERM")
	f.wantSteps("link, lease ADD, gateways, host, undo host, lease DEL")
	if after := f.state(); after != before {
		t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
	}
}

// An invalid configuration is reported before the namespace is opened, which is missing here.
func TestAddValidatesFirst(t *testing.T) {
	for name, tt := range map[string]struct {
		need attach.IPAMNeed
		keys string
		want string
	}{
		"validate":   {attach.Optional, `,"mtu":-1`, "mtu is negative"},
		"type":       {attach.Optional, `,"mtu":"x"`, "mtu"},
		"required":   {attach.Required, `,"ipam":{}`, "IPAM configuration"},
		"never":      {attach.Never, ``, `"ipam" is not supported`},
		"chained":    {attach.OrPrev, `,"ipam":{}`, "IPAM configuration"},
		"inexpress.": {attach.Optional, `,"ipam":{},"cniVersion":"0.2.0"`, "cannot convert"},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fake{Host: &applettest.Host{T: t, NS: netns.Host()}, Cont: applettest.Container{Path: "/nowhere"}}
			p := f.plugin()
			p.IPAM = tt.need
			_, err := f.call(t.Context(), spec.Add, p, tt.keys)
			f.WantError(err, spec.CodeConfig, tt.want)
			f.wantSteps("")
		})
	}
}

// ADD requires the namespace.
func TestKernelAddWithoutNetns(t *testing.T) {
	for _, path := range []string{"", "/nowhere", applettest.MissingNetNS(t)["stale file"]} {
		f := newFake(t)
		f.Cont.Path = path
		_, err := f.call(t.Context(), spec.Add, f.plugin(), "")
		f.WantError(err, spec.CodeNetNS, "open netns")
		f.wantSteps("")
	}
}

// ADD returns an error for an existing interface name and leaves that link.
func TestKernelAddNameInUse(t *testing.T) {
	f := newFake(t)
	kerneltest.AddLink(t, f.Cont.NS, rtnl.LinkSpec{Name: "eth0", Kind: rtnl.Bridge{}})
	before := f.state()
	_, err := f.call(t.Context(), spec.Add, f.plugin(), "")
	f.WantError(err, spec.CodeBusy, `"eth0" already exists`)
	if after := f.state(); after != before {
		t.Errorf("changed:\n%s", kerneltest.Diff(before, after))
	}
}

// A result of the IPAM plugin without an address is an error.
func TestKernelAddNoAddress(t *testing.T) {
	f := newFake(t)
	before := f.state()
	ipam := invoker(func(r *spec.Request) (*spec.Result, error) { return &spec.Result{}, nil })
	_, err := f.callWith(ipam, spec.Add, f.plugin(), "")
	f.WantError(err, spec.CodePlugin, "gave no address")
	if after := f.state(); after != before {
		t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
	}
}

// An MTU too small for IPv6 is an error that names the link, before it gets addresses.
func TestKernelAddSmallMTU(t *testing.T) {
	f := newFake(t)
	before := f.state()
	ipam := invoker(func(r *spec.Request) (*spec.Result, error) {
		return &spec.Result{IPs: []spec.IP{{Address: prefix("2001:db8::5/64")}}}, nil
	})
	_, err := f.callWith(ipam, spec.Add, f.plugin(), `,"mtu":1000`)
	f.WantError(err, spec.CodeConfig, "MTU 1000 of eth0 is too small for IPv6")
	if after := f.state(); after != before {
		t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
	}
}

// The addresses of a device without a netdev are in the result only; they are neither configured
// nor checked.
func TestKernelDeviceWithoutNetdev(t *testing.T) {
	f := newFake(t)
	prev := f.add(`,"bare":true`)
	f.wantSteps("link, lease ADD, gateways, host")
	if got := links(t, f.Cont.NS); got != "" {
		t.Errorf("the container has %s", got)
	}
	f.must(spec.Check, prev)
	f.wantSteps("lease CHECK")
	if res, err := f.call(t.Context(), spec.Get, f.plugin(), `,"bare":true`); err != nil || len(res.IPs) != 1 {
		t.Errorf("GET: %+v, %v", res, err)
	}
	f.must(spec.Del, prev)
	if f.leases != 0 || !strings.Contains(strings.Join(f.log, ", "), "release") {
		t.Errorf("after DEL: %d leases, done %q", f.leases, f.log)
	}
}
