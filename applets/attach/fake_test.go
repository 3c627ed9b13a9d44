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

	"cnibox/applets/applettest"
	"cnibox/applets/attach"
	"cnibox/internal/kerneltest"
	"cnibox/internal/netns"
	"cnibox/rtnl"
	"cnibox/spec"
)

// A fake is an interface plugin with every step, its IPAM plugin, a host and a container. Its steps
// change something in the kernel, and each can be made to fail after that.
type fake struct {
	*applettest.Host
	Cont       applettest.Container
	fail       map[string]error // by what is in the log
	mu         sync.Mutex       // DEL has two goroutines
	log, warns []string
	leases     int
	leaves     bool // the IPAM plugin is external, and leaves what a failed ADD has leased
	before     func(step string, op *attach.Op)
	instead    map[string]func(*attach.Op, *driver) error // of a step
}

// newFake makes host and container; the plugin's link is a bridge, which
// every kernel that runs the plugins has.
func newFake(t *testing.T) *fake {
	t.Helper()
	kerneltest.NeedKind(t, "CONFIG_BRIDGE", rtnl.Bridge{})
	h := applettest.NewHost(t)
	return &fake{Host: h, Cont: h.Container("c1"), fail: map[string]error{}, instead: map[string]func(*attach.Op, *driver) error{}}
}

// did logs a step, and returns the error that the step shall have.
func (f *fake) did(what string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, what)
	return f.fail[what]
}

// driver is the fake as a Driver, and its configuration.
type driver struct {
	attach.Defaults
	MTU  int  `json:"mtu"`
	Bare bool `json:"bare"` // a device without a netdev

	f *fake
}

// step runs what a test has in place of a step, or the step, and logs it.
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
	return f.did(name)
}

func (d *driver) Validate() error {
	if d.MTU < 0 {
		return errors.New("mtu is negative")
	}
	return nil
}

func (d *driver) Facts() attach.Facts { return attach.Facts{NoNetdev: d.Bare} }

func (d *driver) Link(op *attach.Op) error {
	return d.step("link", op, func() error {
		if d.Bare {
			return nil
		}
		return op.CreateContainerLink(op.Cont, rtnl.LinkSpec{Kind: rtnl.Bridge{}, MTU: d.MTU})
	})
}

func (d *driver) Gateways(op *attach.Op) error { return d.step("gateways", op, nil) }

// Routes are the kernel's.
func (d *driver) Routes(op *attach.Op) []rtnl.Route {
	if d.f.instead["routes"] != nil {
		_ = d.step("routes", op, nil)
	}
	return nil
}

func (d *driver) Host(op *attach.Op) error {
	return d.step("host", op, func() error {
		op.Undo("link of the host", func(context.Context) error {
			return errors.Join(op.Host.DelLink("fake0"), d.f.did("undo host"))
		})
		return op.Host.AddLink(rtnl.LinkSpec{Name: "fake0", Kind: rtnl.Bridge{}})
	})
}

func (d *driver) Check(op *attach.Op) error { return d.step("check", op, nil) }

// Remove is the flow's, unless a test has another.
func (d *driver) Remove(op *attach.Op) error {
	if d.f.instead["remove"] == nil {
		return d.Defaults.Remove(op)
	}
	return d.step("remove", op, nil)
}

func (d *driver) Release(op *attach.Op) error {
	return d.step("release", op, func() error { return rtnl.SkipAbsent(op.Host.DelLink("fake0")) })
}

func (d *driver) Probe(*attach.Op) error { return d.f.did("probe") }

func (d *driver) Collect(op *attach.Op) error { return d.step("collect", op, nil) }

func (f *fake) plugin() *attach.Plugin {
	return &attach.Plugin{Kind: "bridge", New: func() attach.Driver { return &driver{f: f} }}
}

// Invoke is the IPAM plugin: it has one address and counts its leases.
func (f *fake) Invoke(_ context.Context, plugin string, r *spec.Request) (*spec.Result, error) {
	verb := r.Call.Verb
	err := f.did(plugin + " " + string(verb))
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

// Find makes the fake a built-in IPAM plugin, or an external one that leaves what a failed ADD has
// leased to DEL.
func (f *fake) Find(string) (*spec.Plugin, error) {
	if f.leaves {
		return nil, nil
	}
	return &spec.Plugin{IPAM: true}, nil
}

// An invoker is an IPAM plugin of one function.
type invoker func(*spec.Request) (*spec.Result, error)

func (i invoker) Find(string) (*spec.Plugin, error) { return &spec.Plugin{IPAM: true}, nil }

func (i invoker) Invoke(_ context.Context, _ string, r *spec.Request) (*spec.Result, error) {
	return i(r)
}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// call runs a verb of the plugin on the host, with additional keys in the configuration.
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

// add runs an ADD that must succeed; it returns the key with its result for other verbs.
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

// must is call for a verb that has to succeed.
func (f *fake) must(verb spec.Verb, keys string) *spec.Result {
	f.T.Helper()
	res, err := f.call(f.T.Context(), verb, f.plugin(), keys)
	if err != nil {
		f.T.Fatalf("%s: %v", verb, err)
	}
	return res
}

// logged compares what was done with what should be.
func (f *fake) logged(want string) {
	f.T.Helper()
	if got := strings.Join(f.log, ", "); got != want {
		f.T.Errorf("done: %s\nwant: %s", got, want)
	}
}

// state returns everything that the plugin can leave behind.
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
