package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"cnibox/applets/applettest"
	"cnibox/internal/kerneltest"
	"cnibox/rtnl"
	"cnibox/spec"
	"cnibox/test/product"
)

// A fixture is the descriptor of a plugin, with what only the hosts of this package have.
type fixture struct {
	applettest.Plugin
	name string
	service
}

// A service is what a plugin needs beside links: a daemon of its own.
type service struct {
	start func(*world) // also makes what the daemon works on
	stop  func(*world) // deletes that, but for what TakeAway deletes
}

// services are filled by the test files of such plugins.
var services = map[string]service{}

// fixtureOf returns that of a plugin, after the other one of two that may be before it: so each is
// tried with two.
func fixtureOf(plugin string) fixture {
	f := fixture{applettest.Plugins[plugin], plugin, services[plugin]}
	if f.OrAfter != "" {
		f.After = f.OrAfter
	}
	return f
}

// goodConf is the configuration of a plugin that tests here change: its descriptor's, with a
// prevResult and an attachment that GC keeps. Those that make an interface have networks of their
// own, but bridge: GC of another network must leave them alone.
func goodConf(plugin string) string {
	network := "demo"
	if applettest.Makes(plugin) && plugin != "bridge" {
		network = plugin
	}
	return spoil(spoil(applettest.Plain(plugin, network), goodValid), goodPrev)
}

// TestEveryPlugin wants a descriptor of each plugin: without one, nothing tests its DEL, its
// helpers, its faults and its bad input.
func TestEveryPlugin(t *testing.T) {
	for _, plugin := range product.Plugins() {
		if _, ok := applettest.Plugins[plugin]; !ok {
			t.Errorf("applettest.Plugins has no %s", plugin)
		}
		if f := fixtureOf(plugin); f.Below() == nil && f.Excuse(applettest.BelowMissing) == "" {
			t.Errorf("%s: a cell of the table of DELs is neither filled nor excused", plugin)
		}
	}
}

// eachPlugin runs a test for each plugin that is there, that the kernel can do, and that is
// not tested elsewhere.
func eachPlugin(t *testing.T, test func(t *testing.T, plugin string, f fixture)) {
	for _, plugin := range product.Plugins() {
		f := fixtureOf(plugin)
		if f.After != "" && !there(f.After) {
			continue // a build without the other plugin
		}
		if applettest.Elsewhere(plugin) {
			continue
		}
		t.Run(plugin, func(t *testing.T) { test(t, plugin, f) })
	}
}

// there reports whether a plugin has not been left out of the build.
func there(plugin string) bool {
	return slices.Contains(product.Plugins(), plugin)
}

// host makes a world that has what the plugin needs, and another attachment, unless all
// such have to be gone.
func (f fixture) host(t *testing.T, plugin string, bare bool) (w *world, other *attached) {
	t.Helper()
	f.NeedChain(t)
	w = newWorld(t)
	f.furnish(w)
	if other = w.attach(plugin, w.Container("other"), w.inProcess); bare {
		other.del() // leaves what a host keeps
	}
	return w, other
}

// enter makes a container as the plugin finds it.
func (f fixture) enter(w *world, c applettest.Container) applettest.Container {
	w.Helper()
	if f.Ready != nil {
		f.Ready(w.T, c)
	}
	return c
}

// furnish makes what the host has before the first ADD.
func (f fixture) furnish(w *world) {
	w.Helper()
	f.Furnish(w.Host)
	if f.start != nil {
		f.start(w)
	}
}

// takeAway deletes what of the host the attachment depends on.
func (f fixture) takeAway(w *world) {
	w.Helper()
	f.Below()(w.Host)
	if f.stop != nil {
		f.stop(w)
	}
}

// A caller calls a plugin, in this process or in one of its own.
type caller func(verb spec.Verb, applet, conf string, c applettest.Container, env ...string) answer

// A chainStep is a plugin in the order of ADD, with its configuration, which has no
// prevResult yet.
type chainStep struct{ plugin, conf string }

// An attached is an attachment that a plugin has made, and the one before it.
type attached struct {
	w     *world
	c     applettest.Container
	call  caller
	steps []chainStep
	prev  string // the last result; empty: none
}

// chain are the steps of an attachment of a plugin, with nothing done yet.
// All are of one network, as the plugins of a list are.
func (w *world) chain(plugin string, c applettest.Container, call caller) *attached {
	a := &attached{w: w, c: c, call: call}
	if after := fixtureOf(plugin).After; after != "" {
		a.steps = w.chain(after, c, call).steps
	}
	a.steps = append(a.steps, chainStep{plugin, spoil(strings.ReplaceAll(goodConf(plugin), "$NETNS", c.Path), `"name":"demo"`)})
	return a
}

// attach makes one; that of a container "other" differs from that of the rest where
// there can be only one of a kind.
func (w *world) attach(plugin string, c applettest.Container, call caller) *attached {
	w.Helper()
	a := w.chain(plugin, c, call)
	if other := applettest.Plugins[plugin].Other; other != "" && c.ID == "other" {
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

// A mortal is a container whose namespace the test can end.
type mortal struct {
	applettest.Container
	w *world
}

func (w *world) mortal(id string) *mortal { return &mortal{w.Container(id), w} }

// giveBack moves eth0 to the host, down and under the name that it has, as the kernel
// does with hardware.
func (m *mortal) giveBack() {
	kerneltest.Brief(m.w, m.NS, func(c *rtnl.Conn) error {
		l, err := c.Link("eth0")
		if err == nil {
			err = c.SetLink(l.Index, rtnl.LinkChange{Up: new(false)})
		}
		if err == nil {
			err = c.SetLink(l.Index, rtnl.LinkChange{NS: m.w.NS})
		}
		return err
	})
}

// settles wants a state to be as it was before in the end: the kernel takes its time
// over what was in a namespace.
func (w *world) settles(what, before string, state func() string) {
	w.Helper()
	after := state()
	for end := time.Now().Add(processTime); after != before && time.Now().Before(end); after = state() {
		time.Sleep(5 * time.Millisecond)
	}
	w.Same(what, before, after)
}
