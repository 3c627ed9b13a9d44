package attach_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/applets/attach"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// A fake is an interface plugin with every step, its IPAM plugin, a host and a container. Steps
// change something in the kernel, and can be made to fail afterwards.
type fake struct {
	*applettest.Host
	Cont       applettest.Container
	fail       map[string]error // by text in log
	mu         sync.Mutex       // DEL runs two goroutines
	log, warns []string
	leases     int
	leaves     bool // the IPAM plugin is external, and keeps the lease of a failed ADD
	before     func(step string, op *attach.Op)
	instead    map[string]func(*attach.Op, *driver) error // by step
}

// newFake returns a fake whose link is a bridge, since every kernel that runs these tests has
// bridges.
func newFake(t *testing.T) *fake {
	t.Helper()
	kerneltest.NeedKind(t, "CONFIG_BRIDGE", rtnl.Bridge{})
	h := applettest.NewHost(t)
	return &fake{Host: h, Cont: h.Container("c1"), fail: map[string]error{}, instead: map[string]func(*attach.Op, *driver) error{}}
}

// logStep logs a step and returns its error.
func (f *fake) logStep(what string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, what)
	return f.fail[what]
}

// driver is the Driver of a fake with its configuration.
type driver struct {
	attach.Defaults
	MTU  int  `json:"mtu"`
	Bare bool `json:"bare"` // device without a netdev

	f *fake
}

// step logs a step and runs it, or what a test has in its place.
func (d *driver) step(name string, op *attach.Op, deed func() error) error {
	f := d.f
	if f.before != nil {
		f.before(name, op)
	}
	if other := f.instead[name]; other != nil {
		deed = func() error { return other(op, d) }
	}
	if deed != nil {
		if err := deed(); err != nil {
			return err
		}
	}
	return f.logStep(name)
}

func (d *driver) Validate(*spec.Request) error {
	if d.MTU < 0 {
		return errors.New("mtu is negative")
	}
	return nil
}

func (d *driver) Resources() spec.Resources { return spec.Resources{NoNetdev: d.Bare} }

func (d *driver) Link(op *attach.Op) error {
	return d.step("link", op, func() error {
		if d.Bare {
			return nil
		}
		return op.CreateContainerLink(op.Cont, rtnl.LinkSpec{Kind: rtnl.Bridge{}, MTU: d.MTU})
	})
}

func (d *driver) Gateways(op *attach.Op) error { return d.step("gateways", op, nil) }

// Routes returns those that the kernel adds for the addresses.
func (d *driver) Routes(op *attach.Op) []rtnl.Route {
	if d.f.instead["routes"] != nil {
		_ = d.step("routes", op, nil)
	}
	return nil
}

func (d *driver) Host(op *attach.Op) error {
	return d.step("host", op, func() error {
		op.Undo("link of the host", func(context.Context) error {
			return errors.Join(op.Host.DelLink("fake0"), d.f.logStep("undo host"))
		})
		return op.Host.AddLink(rtnl.LinkSpec{Name: "fake0", Kind: rtnl.Bridge{}})
	})
}

func (d *driver) Check(op *attach.Op) error { return d.step("check", op, nil) }

// Remove is that of the flow by default.
func (d *driver) Remove(op *attach.Op) error {
	if d.f.instead["remove"] == nil {
		return d.Defaults.Remove(op)
	}
	return d.step("remove", op, nil)
}

func (d *driver) Release(op *attach.Op) error {
	return d.step("release", op, func() error { return rtnl.SkipAbsent(op.Host.DelLink("fake0")) })
}

func (d *driver) Probe(*attach.Op) error { return d.f.logStep("probe") }

func (d *driver) Collect(op *attach.Op) error { return d.step("collect", op, nil) }

func (f *fake) plugin() *attach.Plugin {
	return &attach.Plugin{Facts: spec.Facts{Args: true, MAC: true}, Kind: "bridge", New: func() attach.Driver { return &driver{f: f} }}
}

// Invoke is the IPAM plugin, which has one address and counts its leases.
func (f *fake) Invoke(_ context.Context, plugin string, r *spec.Request) (*spec.Result, error) {
	verb := r.Call.Verb
	err := f.logStep(plugin + " " + string(verb))
	switch {
	case verb == spec.Add && (err == nil || f.leaves):
		f.leases = 1
	case verb == spec.Del:
		f.leases = 0
	}
	if err != nil {
		return nil, err
	}
	if verb != spec.Add && verb != spec.Get {
		return nil, nil
	}
	return &spec.Result{
		IPs:    []spec.IP{{Address: prefix("192.0.2.5/24"), Gateway: netip.MustParseAddr("192.0.2.1")}},
		Routes: []spec.Route{{Dst: prefix("0.0.0.0/0")}},
	}, nil
}

// Find returns a built-in IPAM plugin, or none if it is external.
func (f *fake) Find(string) (*spec.Plugin, error) {
	if f.leaves {
		return nil, nil
	}
	return &spec.Plugin{Facts: spec.Facts{IPAM: true}}, nil
}

// Known returns a plugin that sends its release over the link, whether or not it is external.
func (f *fake) Known(plugin string) *spec.Plugin {
	return &spec.Plugin{Facts: spec.Facts{IPAM: true, OverLink: plugin == "overlink"}}
}

// An invoker is an IPAM plugin as a function.
type invoker func(*spec.Request) (*spec.Result, error)

func (i invoker) Find(string) (*spec.Plugin, error) {
	return &spec.Plugin{Facts: spec.Facts{IPAM: true}}, nil
}

func (i invoker) Known(string) *spec.Plugin { return nil }

func (i invoker) Invoke(_ context.Context, _ string, r *spec.Request) (*spec.Result, error) {
	return i(r)
}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// call runs a verb of the plugin on the host, with keys added to the configuration.
func (f *fake) call(ctx context.Context, verb spec.Verb, p *attach.Plugin, keys string) (*spec.Result, error) {
	f.T.Helper()
	return f.run(ctx, f, verb, p, keys)
}

// callWith is call with another IPAM plugin.
func (f *fake) callWith(ipam spec.Invoker, verb spec.Verb, p *attach.Plugin, keys string) (*spec.Result, error) {
	f.T.Helper()
	return f.run(f.T.Context(), ipam, verb, p, keys)
}

func (f *fake) run(ctx context.Context, ipam spec.Invoker, verb spec.Verb, p *attach.Plugin, keys string) (*spec.Result, error) {
	f.T.Helper()
	text := `{"cniVersion":"1.1.0","name":"net","type":"fake","ipam":{"type":"lease"}` + keys + `}`
	call := spec.Call{Verb: verb, ContainerID: "ctr", IfName: "eth0", NetNS: f.Cont.Path}
	r, err := spec.NewRequest(call, []byte(text))
	if err != nil {
		f.T.Fatal(err)
	}
	r.Invoker = ipam
	r.Warn = func(format string, args ...any) { f.warns = append(f.warns, fmt.Sprintf(format, args...)) }
	f.log, f.warns = nil, nil
	var res *spec.Result
	err = f.NS.Do(func() (err error) {
		res, err = p.Spec().Do(ctx, r)
		return err
	})
	return res, err
}

// add runs ADD, which must succeed. It returns keys with the result as prevResult, for other verbs.
func (f *fake) add(keys string) (prev string) {
	f.T.Helper()
	res, err := f.call(f.T.Context(), spec.Add, f.plugin(), keys)
	if err != nil {
		f.T.Fatal(err)
	}
	b, err := res.EncodeFor(spec.Newest, "eth0")
	if err != nil {
		f.T.Fatal(err)
	}
	return keys + `,"prevResult":` + string(b)
}

// must is call for a verb that must succeed.
func (f *fake) must(verb spec.Verb, keys string) *spec.Result {
	f.T.Helper()
	res, err := f.call(f.T.Context(), verb, f.plugin(), keys)
	if err != nil {
		f.T.Fatalf("%s: %v", verb, err)
	}
	return res
}

// wantSteps compares the log of steps with the expected one.
func (f *fake) wantSteps(want string) {
	f.T.Helper()
	if got := strings.Join(f.log, ", "); got != want {
		f.T.Errorf("done: %s\nwant: %s", got, want)
	}
}

// state returns what the plugin can leave.
func (f *fake) state() string {
	f.T.Helper()
	return fmt.Sprintf("%s--\n%s--\n%d leases\n", kerneltest.Snapshot(f.T, f.NS), kerneltest.Snapshot(f.T, f.Cont.NS), f.leases)
}

// links returns the names of a namespace's links without lo.
func links(t *testing.T, ns *netns.NS) string {
	t.Helper()
	var names []string
	for _, l := range kerneltest.Links(t, ns) {
		if l.Name != "lo" {
			names = append(names, l.Name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}
