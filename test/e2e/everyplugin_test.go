package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
	"github.com/cnibox/cnibox/test/product"
)

// A fixture is the descriptor of a plugin, with the daemon that this package starts for it.
type fixture struct {
	applettest.Plugin
	name string
	service
}

// A service is what a plugin needs besides links: a daemon.
type service struct {
	start func(*world) // also makes what the daemon needs
	stop  func(*world) // deletes that, except what TakeAway deletes
}

// The test files of plugins with a daemon fill services.
var services = map[string]service{}

// fixtureOf returns the fixture of a plugin. Of two plugins that may come before it, it has the one
// that other tests do not have, so that both are tested.
func fixtureOf(plugin string) fixture {
	f := fixture{applettest.Plugins[plugin], plugin, services[plugin]}
	if f.OrAfter != "" {
		f.After = f.OrAfter
	}
	return f
}

// goodConf is the configuration of a plugin that tests change: its descriptor's, with a prevResult
// and an attachment that GC keeps. Interface plugins but bridge have their own networks: GC of
// another network must not delete their attachments.
func goodConf(plugin string) string {
	network := "demo"
	if applettest.Makes(plugin) && plugin != "bridge" {
		network = plugin
	}
	return withMember(withMember(applettest.Plain(plugin, network), goodValid), goodPrev)
}

// Each plugin has a descriptor: without one, nothing tests its DEL, child processes, faults and bad
// input.
func TestPluginsHaveDescriptors(t *testing.T) {
	for _, plugin := range product.Plugins() {
		if _, ok := applettest.Plugins[plugin]; !ok {
			t.Errorf("applettest.Plugins has no %s", plugin)
		}
		if f := fixtureOf(plugin); f.Below() == nil && f.Excuse(applettest.BelowMissing) == "" {
			t.Errorf("%s: a cell of the table of DELs is neither filled nor excused", plugin)
		}
	}
}

// eachPlugin runs a test for each plugin of this build that the kernel supports and that is not
// tested elsewhere.
func eachPlugin(t *testing.T, test func(t *testing.T, plugin string, f fixture)) {
	for _, plugin := range product.Plugins() {
		f := fixtureOf(plugin)
		if f.After != "" && !built(f.After) {
			continue // the other plugin is not in this build
		}
		if applettest.Elsewhere(plugin) {
			continue
		}
		t.Run(plugin, func(t *testing.T) { test(t, plugin, f) })
	}
}

// built reports whether the build has the plugin.
func built(plugin string) bool {
	return slices.Contains(product.Plugins(), plugin)
}

// host makes a world with what the plugin needs and, unless bare, another attachment.
func (f fixture) host(t *testing.T, plugin string, bare bool) (w *world, other *attached) {
	t.Helper()
	f.NeedChain(t)
	w = newWorld(t)
	f.furnish(w)
	if other = w.attach(plugin, w.Container("other"), w.inProcess); bare {
		other.del() // leaves what the host keeps
	}
	return w, other
}

// enter prepares a container for the plugin.
func (f fixture) enter(w *world, c applettest.Container) applettest.Container {
	w.Helper()
	if f.Ready != nil {
		f.Ready(w.T, c)
	}
	return c
}

// furnish makes what the plugin needs on the host.
func (f fixture) furnish(w *world) {
	w.Helper()
	f.Furnish(w.Host)
	if f.start != nil {
		f.start(w)
	}
}

// takeAway deletes what the attachment depends on from the host.
func (f fixture) takeAway(w *world) {
	w.Helper()
	f.Below()(w.Host)
	if f.stop != nil {
		f.stop(w)
	}
}

// A caller calls a plugin, in this process or in a child process.
type caller func(verb spec.Verb, applet, conf string, c applettest.Container, env ...string) answer

// A chainStep is a plugin and its configuration, without prevResult.
type chainStep struct{ plugin, conf string }

// An attached is an attachment by a plugin and those before it in the list.
type attached struct {
	w     *world
	c     applettest.Container
	call  caller
	steps []chainStep
	prev  string // last result; empty: none
}

// chain returns the steps of an attachment by a plugin, none of which has run. All have the same
// network, as in a list.
func (w *world) chain(plugin string, c applettest.Container, call caller) *attached {
	a := &attached{w: w, c: c, call: call}
	if after := fixtureOf(plugin).After; after != "" {
		a.steps = w.chain(after, c, call).steps
	}
	a.steps = append(a.steps, chainStep{plugin, withMember(strings.ReplaceAll(goodConf(plugin), "$NETNS", c.Path), `"name":"demo"`)})
	return a
}

// attach runs all steps. The container "other" gets different values where a value must be unique
// on the host.
func (w *world) attach(plugin string, c applettest.Container, call caller) *attached {
	w.Helper()
	a := w.chain(plugin, c, call)
	if other := applettest.Plugins[plugin].Other; other != "" && c.ID == "other" {
		a.steps[a.last()].conf = withMember(a.steps[a.last()].conf, other)
	}
	for i := range a.steps {
		a.must(spec.Add, i)
	}
	return a
}

// last is the index of the plugin's own step.
func (a *attached) last() int { return len(a.steps) - 1 }

// conf is the configuration of a step with the last result as prevResult.
func (a *attached) conf(i int) string {
	prev := "null"
	if a.prev != "" {
		prev = a.prev
	}
	return withMember(a.steps[i].conf, `"prevResult":`+prev)
}

// do calls a verb of one step.
func (a *attached) do(verb spec.Verb, i int, env ...string) answer {
	a.w.Helper()
	return a.call(verb, a.steps[i].plugin, a.conf(i), a.c, env...)
}

// must is do for calls that must succeed; the answer of ADD is the next prevResult.
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

// del calls DEL of all steps in reverse order.
func (a *attached) del() {
	a.w.Helper()
	for i := a.last(); i >= 0; i-- {
		a.must(spec.Del, i)
	}
	a.prev = ""
}

// An endable is a container whose namespace the test can delete.
type endable struct {
	applettest.Container
	w *world
}

func (w *world) endable(id string) *endable { return &endable{w.Container(id), w} }

// returnDevice moves eth0 to the host, down and with the same name, as the kernel does with hardware.
func (m *endable) returnDevice() {
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
