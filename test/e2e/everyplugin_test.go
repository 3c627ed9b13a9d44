package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/internal/kerneltest"
	"cnibox/rtnl"
	"cnibox/spec"
	"cnibox/test/product"
)

// A fixture is what the tests across all plugins know of one, beside its good
// configuration. The zero value is a plugin that needs nothing.
type fixture struct {
	after   string    // the plugin that makes the interface that it works on
	feature string    // what the kernel must have
	kind    rtnl.Kind // links of that kind; nil: nothing special
	tap     bool      // taps

	prepare  func(*world)            // makes what the host has beside lo
	takeAway func(*world)            // takes from the host what the attachment stands on
	comeBack func(*mortal)           // what the kernel gives back to the host when a namespace ends
	ready    func(*world, container) // what the kernel, or another program, has left in the container before ADD
	idle     bool                    // the plugin changes nothing itself
	other    string                  // member for the configuration of another attachment

	unrecorded func(*world) // puts back what DEL cannot know without its records

	invalid string            // member that makes the configuration one that does not validate
	except  map[string]string // cells of the table of DELs that there cannot be, and why
}

const nothingBelow = "the attachment stands on no link of the host that is not its own"

const unplugged = "hardware that is gone from the container, and not back, is gone from the host: see below missing"

// everyPlugin has an entry for each applet that is a plugin; the test file of one that
// needs more than this puts it in.
var everyPlugin = map[string]fixture{
	"bridge": {takeAway: func(w *world) { w.dropLink("br0") }, invalid: `"mtu":-1`},
	"ptp":    {invalid: `"mtu":-1`, except: map[string]string{"below missing": nothingBelow}},
	"tap":    {tap: true, feature: "CONFIG_TUN", invalid: `"mtu":-1`, except: map[string]string{"below missing": nothingBelow}},
	"dummy": {feature: "CONFIG_DUMMY", kind: rtnl.Dummy{}, invalid: `"mac":"x"`,
		except: map[string]string{"below missing": nothingBelow}},
	"macvlan": {feature: "CONFIG_MACVLAN", kind: rtnl.Macvlan{}, prepare: (*world).uplinks,
		takeAway: func(w *world) { w.dropLink("up0") }, invalid: `"mode":"x"`},
	"ipvlan": {feature: "CONFIG_IPVLAN", kind: rtnl.Ipvlan{}, prepare: (*world).uplinks,
		takeAway: func(w *world) { w.dropLink("up0") }, invalid: `"mode":"x"`},
	"vlan": {feature: "CONFIG_VLAN_8021Q", kind: rtnl.Vlan{ID: 7}, prepare: (*world).uplinks, other: `"vlanId":43`,
		takeAway: func(w *world) { w.dropLink("up0") }, invalid: `"vlanId":5000`},
	"host-device": {prepare: (*world).nics, takeAway: func(w *world) { w.dropLink("wire0"); w.dropLink("wire1") }, other: `"device":"nic1"`,
		comeBack: (*mortal).giveBack, invalid: `"pciBusID":"x"`, except: map[string]string{
			"link missing": unplugged, "link and prevResult missing": unplugged,
			"namespace empty, container alive": "only the container can reach what is in it"}},
	"loopback": {ready: func(w *world, c container) { w.lo(c, false) }, except: map[string]string{
		"below missing": nothingBelow, "link missing": "lo cannot be deleted", "invalid configuration": "it has no keys"}},
	"host-local": {invalid: `"ipam":{"type":"host-local","dataDir":"$DIR/leases","subnet":"x"}`,
		except: map[string]string{"below missing": nothingBelow}},
	"static": {idle: true, invalid: `"ipam":{"type":"static","addresses":[{"address":"x"}]}`, except: map[string]string{"below missing": nothingBelow}},

	// the bridge goes, and with it each port
	"portmap": {after: "bridge", other: `"runtimeConfig":{"portMappings":[{"hostPort":8081,"containerPort":80}]}`, takeAway: func(w *world) { w.dropLink("br0") }, invalid: `"runtimeConfig":{"portMappings":[{"hostPort":70000}]}`,
		unrecorded: func(w *world) {
			if err := w.host.SetSysctl("net/ipv4/conf/br0/route_localnet", "0"); err != nil {
				w.Fatal(err)
			}
		}},
	"firewall": {after: "bridge", takeAway: func(w *world) { w.dropLink("br0") }, invalid: `"ingressPolicy":"x"`},
	"tuning":   {after: "macvlan", takeAway: func(w *world) { w.dropLink("up0") }, invalid: `"mtu":"x"`},
	"sbr": {after: "macvlan", takeAway: func(w *world) { w.dropLink("up0") }, invalid: `"table":-1`, except: map[string]string{
		"link and prevResult missing": "it is not recorded which addresses were those of the attachment; a rule is left in the container alone"}},
	"bandwidth": {after: "ptp", feature: "CONFIG_IFB", kind: rtnl.IFB{}, invalid: `"latency":-1`, except: map[string]string{"below missing": nothingBelow}},
	"vrf":       {after: "ptp", ready: (*world).hadVRF, feature: "CONFIG_NET_VRF", kind: rtnl.VRF{Table: 7}, invalid: `"vrfname":"a/b"`, except: map[string]string{"below missing": nothingBelow}},
}

// TestEveryPlugin wants an entry here, and a good configuration, for each plugin.
func TestEveryPlugin(t *testing.T) {
	for _, plugin := range product.Plugins() {
		f, ok := everyPlugin[plugin]
		if !ok || goodConfs[plugin] == "" {
			t.Errorf("everyPlugin or goodConfs has no %s: nothing tests its DEL, its helpers, its faults and its bad input", plugin)
		}
		if f.invalid == "" && f.except["invalid configuration"] == "" || f.takeAway == nil && f.except["below missing"] == "" {
			t.Errorf("%s: a cell of the table of DELs is neither filled nor excused", plugin)
		}
	}
}

// rareFeatures are what kernels may lack that the tests are run on.
var rareFeatures = []string{"CONFIG_DUMMY", "CONFIG_IPVLAN", "CONFIG_VLAN_8021Q", "CONFIG_NET_VRF"}

// elsewhere reports whether a plugin needs no guest of make test-vm, where CNIBOX_TWIN is needs:
// tests that call each plugin many times run outside for them, in a tenth of the time.
func elsewhere(plugin string) bool {
	return os.Getenv("CNIBOX_TWIN") == "needs" && !slices.Contains(rareFeatures, everyPlugin[plugin].feature)
}

// eachPlugin runs a test for each plugin that is there, that the kernel can do, and that is
// not tested elsewhere.
func eachPlugin(t *testing.T, test func(t *testing.T, plugin string, f fixture)) {
	for _, plugin := range product.Plugins() {
		f, ok := everyPlugin[plugin]
		if !ok || f.after != "" && !there(f.after) {
			continue // see TestEveryPlugin; a build without the other plugin
		}
		if elsewhere(plugin) {
			continue
		}
		t.Run(plugin, func(t *testing.T) { test(t, plugin, f) })
	}
}

// there reports whether a plugin has not been left out of the build.
func there(plugin string) bool {
	return slices.Contains(product.Plugins(), plugin)
}

// need skips the test where the kernel lacks what the plugin needs.
func (f fixture) need(t *testing.T) {
	t.Helper()
	switch {
	case f.tap:
		kerneltest.Need(t, f.feature, rtnl.ProbeTap)
	case f.kind != nil:
		kerneltest.NeedKind(t, f.feature, f.kind)
	}
	if f.after != "" {
		everyPlugin[f.after].need(t)
	}
}

// host makes a world that has what the plugin needs, and another attachment, unless all
// such have to be gone.
func (f fixture) host(t *testing.T, plugin string, bare bool) (w *world, other *attached) {
	t.Helper()
	f.need(t)
	w = newWorld(t)
	f.furnish(w)
	if other = w.attach(plugin, w.container("other"), w.inProcess); bare {
		other.del() // leaves what a host keeps
	}
	return w, other
}

// enter makes a container as the plugin finds it.
func (f fixture) enter(w *world, c container) container {
	w.Helper()
	if f.ready != nil {
		f.ready(w, c)
	}
	return c
}

// hadVRF has the kernel make the rules that it never takes back after the first VRF.
func (w *world) hadVRF(c container) {
	w.Helper()
	w.brief(c.ns, func(conn *rtnl.Conn) error {
		return errors.Join(conn.AddLink(rtnl.LinkSpec{Name: "first", Kind: rtnl.VRF{Table: 9}}), conn.DelLink("first"))
	})
}

// furnish is prepare, and that of the plugin before.
func (f fixture) furnish(w *world) {
	if f.after != "" {
		everyPlugin[f.after].furnish(w)
	}
	if f.prepare != nil {
		f.prepare(w)
	}
}

// A caller calls a plugin, in this process or in one of its own.
type caller func(verb spec.Verb, applet, conf string, c container, env ...string) answer

// A chainStep is a plugin in the order of ADD, with its configuration, which has no
// prevResult yet.
type chainStep struct{ plugin, conf string }

// An attached is an attachment that a plugin has made, and the one before it.
type attached struct {
	w     *world
	c     container
	call  caller
	steps []chainStep
	prev  string // the last result; empty: none
}

// chain are the steps of an attachment of a plugin, with nothing done yet.
// All are of one network, as the plugins of a list are.
func (w *world) chain(plugin string, c container, call caller) *attached {
	a := &attached{w: w, c: c, call: call}
	if after := everyPlugin[plugin].after; after != "" {
		a.steps = w.chain(after, c, call).steps
	}
	a.steps = append(a.steps, chainStep{plugin, spoil(strings.ReplaceAll(goodConfs[plugin], "$NETNS", c.path), `"name":"demo"`)})
	return a
}

// attach makes one; that of a container "other" differs from that of the rest where
// there can be only one of a kind.
func (w *world) attach(plugin string, c container, call caller) *attached {
	w.Helper()
	a := w.chain(plugin, c, call)
	if other := everyPlugin[plugin].other; other != "" && c.id == "other" {
		a.steps[a.last()].conf = spoil(a.steps[a.last()].conf, other)
	}
	for i := range a.steps {
		a.must(spec.Add, i)
	}
	return a
}

// last is the step of the plugin itself.
func (a *attached) last() int { return len(a.steps) - 1 }

// conf is the configuration of a step for a verb.
func (a *attached) conf(i int) string {
	prev := "null"
	if a.prev != "" {
		prev = a.prev
	}
	return spoil(a.steps[i].conf, `"prevResult":`+prev)
}

// do calls a verb of a step.
func (a *attached) do(verb spec.Verb, i int, env ...string) answer {
	a.w.Helper()
	return a.call(verb, a.steps[i].plugin, a.conf(i), a.c, env...)
}

// must is do for what has to succeed; the answer of ADD is the next prevResult.
func (a *attached) must(verb spec.Verb, i int, env ...string) {
	a.w.Helper()
	out := a.w.must(fmt.Sprint(verb, " ", a.steps[i].plugin), a.do(verb, i, env...))
	switch {
	case verb == spec.Add:
		a.prev = out
	case out != "" && verb != spec.Get && verb != spec.GetVersion:
		a.w.Errorf("%s %s says %q on stdout", verb, a.steps[i].plugin, out)
	}
}

// del releases all steps, the last one first.
func (a *attached) del() {
	a.w.Helper()
	for i := a.last(); i >= 0; i-- {
		a.must(spec.Del, i)
	}
	a.prev = ""
}

// inProcess calls plugins without a process of their own.
func (w *world) inProcess(verb spec.Verb, applet, conf string, c container, env ...string) answer {
	w.Helper()
	vars := map[string]string{}
	for _, kv := range env {
		k, v, _ := strings.Cut(kv, "=")
		vars[k] = v
	}
	return w.call(verb, applet, conf, c, vars)
}

// dropLink deletes a link of the host.
func (w *world) dropLink(name string) {
	w.Helper()
	if err := kerneltest.Dial(w.T, w.host).DelLink(name); err != nil {
		w.Fatal(err)
	}
}

// A mortal is a container whose namespace the test can end.
type mortal struct {
	container
	w     *world
	ended bool
}

// mortal makes one, at a path as ip-netns(8) makes them. Its lo is up.
func (w *world) mortal(id string) *mortal {
	w.Helper()
	ns, err := rtnl.NewNS()
	if err != nil {
		w.Fatal(err)
	}
	m := &mortal{container: container{id, filepath.Join(w.TempDir(), "netns"), ns}, w: w}
	w.Cleanup(m.end)
	if err := os.WriteFile(m.path, nil, 0o600); err != nil {
		w.Fatal(err)
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", ns.FD()), m.path, "", unix.MS_BIND, ""); err != nil {
		w.Fatalf("bind mount of a network namespace: %v", err)
	}
	w.lo(m.container, true)
	return m
}

// brief talks to a namespace by a socket that does not outlive the call.
func (w *world) brief(ns *rtnl.NS, fn func(*rtnl.Conn) error) {
	w.Helper()
	c, err := rtnl.Dial(ns)
	if err == nil {
		err = errors.Join(fn(c), c.Close())
	}
	if err != nil {
		w.Fatal(err)
	}
}

// lo takes a container's lo, which is the first link of all, up or down.
func (w *world) lo(c container, up bool) {
	w.Helper()
	w.brief(c.ns, func(conn *rtnl.Conn) error { return conn.SetLink(1, rtnl.LinkChange{Up: &up}) })
}

// nics give the host two links that stand for hardware.
func (w *world) nics() {
	w.Helper()
	c := kerneltest.Dial(w.T, w.host)
	for _, n := range []string{"0", "1"} {
		if err := c.AddLink(rtnl.LinkSpec{Name: "nic" + n, Peer: &rtnl.LinkSpec{Name: "wire" + n}}); err != nil {
			w.Fatal(err)
		}
	}
}

// giveBack moves eth0 to the host, down and under the name that it has, as the kernel
// does with hardware.
func (m *mortal) giveBack() {
	m.w.brief(m.ns, func(c *rtnl.Conn) error {
		l, err := c.Link("eth0")
		if err == nil {
			err = c.SetLink(l.Index, rtnl.LinkChange{Up: new(false)})
		}
		if err == nil {
			err = c.SetLink(l.Index, rtnl.LinkChange{NS: m.w.host})
		}
		return err
	})
}

// end takes the namespace away; at its path a regular file is left, as after a crash.
func (m *mortal) end() {
	m.w.Helper()
	if m.ended {
		return
	}
	m.ended = true
	if err := errors.Join(unix.Unmount(m.path, unix.MNT_DETACH), m.ns.Close()); err != nil {
		m.w.Errorf("end of a network namespace: %v", err)
	}
}

// settles wants a state to be as it was before in the end: the kernel takes its time
// over what was in a namespace.
func (w *world) settles(what, before string, state func() string) {
	w.Helper()
	after := state()
	for end := time.Now().Add(processTime); after != before && time.Now().Before(end); after = state() {
		time.Sleep(5 * time.Millisecond)
	}
	w.same(what, before, after)
}
