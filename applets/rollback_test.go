package applets_test

import (
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"cnibox/applets"
	"cnibox/applets/applettest"
	"cnibox/internal/kerneltest"
	"cnibox/spec"
)

// A stage is a host and a container, prepared for ADD of a plugin.
type stage struct {
	*applettest.Host
	applettest.Plugin
	name string
}

func newStage(t *testing.T, name string) *stage {
	t.Helper()
	return newStageOf(t, name, applettest.Plugins[name])
}

// newStageOf is newStage with a descriptor that a test has changed.
func newStageOf(t *testing.T, name string, p applettest.Plugin) *stage {
	t.Helper()
	s := &stage{applettest.NewHost(t), p, name}
	s.NeedChain(t)
	s.Furnish(s.Host)
	return s
}

// container returns one in which the interface is that this plugin changes, if it makes none
// itself, and the configuration with that one's result.
func (s *stage) container(id, conf string) (applettest.Container, string) {
	s.Helper()
	c := s.Container(id)
	applettest.SetDAD(s.T, c.NS, "0", "0") // where a plugin waits for it, it is over at once
	if s.Ready != nil {
		s.Ready(s.T, c)
	}
	if s.After != "" {
		conf = applettest.Prev(conf, s.Must(spec.Add, s.After, before(s.After), c))
	}
	return c, conf
}

// before is the configuration of a plugin that makes the interface for another one.
func before(plugin string) string {
	switch plugin {
	case "bridge":
		return applettest.GatewayConf
	case "ptp":
		return applettest.PtpConf
	default:
		return applettest.Plain(plugin, "demo")
	}
}

// eachConf runs a test for each plugin that makes or changes interfaces and each of its
// configurations; single are those of which a host can have one attachment at a time.
func eachConf(t *testing.T, test func(t *testing.T, plugin, conf string, single bool)) {
	for name := range applettest.Plugins {
		if applettest.OnlyAddresses(name) || name == "loopback" || applettest.Elsewhere(name) {
			continue
		}
		confs, single := applettest.All(name)
		for what, conf := range confs {
			t.Run(name+"/"+what, func(t *testing.T) { test(t, name, conf, false) })
		}
		for what, conf := range single {
			t.Run(name+"/"+what, func(t *testing.T) { test(t, name, conf, true) })
		}
	}
}

// A rollback is a row of the table of ADDs that fail: a plugin, its configuration, and what is
// there before.
type rollback struct {
	applettest.Plugin
	name, conf string
	other      string // the configuration of another attachment; empty: there is none
	earlier    string // that of an earlier ADD of the same; empty: there is none
}

// rollbacks are the rows of a plugin, by name.
func rollbacks(plugin string) map[string]rollback {
	p, rows := applettest.Plugins[plugin], map[string]rollback{}
	of := func(name string, p applettest.Plugin, conf string, single bool) {
		row := rollback{Plugin: p, name: plugin, conf: conf}
		if p.Again != "" {
			again := row
			again.earlier = spoil(conf, p.Again)
			rows[name+"/again"] = again
		}
		switch {
		case !single:
			row.other = conf
		case p.Other != "":
			row.other = spoil(conf, p.Other)
		default:
			return
		}
		rows[name+"/used host"] = row
	}
	confs, single := applettest.All(plugin)
	for _, some := range []map[string]string{confs, single} {
		for name, conf := range some {
			rows[name+"/new host"] = rollback{Plugin: p, name: plugin, conf: conf}
			of(name, p, conf, single[name] != "")
		}
	}
	plain := applettest.Plain(plugin, "demo")
	if confs["keys"] == "" && single["keys"] == "" {
		of("keys", p, plain, p.Other != "")
	}
	if p.OrAfter != "" {
		p.After = p.OrAfter
		of("keys after "+p.After, p, plain, p.Other != "")
	}
	return rows
}

// spoil gives a configuration members that go before those of the same name.
func spoil(conf, members string) string {
	if members == "" {
		return conf
	}
	return strings.TrimSuffix(conf, "}") + "," + members + "}"
}

// TestKernelRollback is the table of ADDs that fail. For each plugin it makes the nth call that
// changes something fail, for every n: afterwards nothing differs from before, on a new host, on one
// where there is another attachment, and after an earlier ADD of the same. What dhcp changes
// its daemon does.
func TestKernelRollback(t *testing.T) {
	for plugin := range applettest.Plugins {
		if plugin == "dhcp" || applettest.Elsewhere(plugin) {
			continue
		}
		for name, row := range rollbacks(plugin) {
			t.Run(plugin+"/"+name, row.test)
		}
	}
}

func (r rollback) test(t *testing.T) {
	var s *stage
	var c applettest.Container
	var conf, before string
	prepare := func() {
		s = newStageOf(t, r.name, r.Plugin)
		if r.other != "" {
			other, conf := s.container("other", r.other)
			s.Must(spec.Add, r.name, conf, other)
		}
		c, conf = s.container("ctr", r.conf)
		if r.earlier != "" {
			earlier := strings.Replace(conf, r.conf[:len(r.conf)-1], r.earlier[:len(r.earlier)-1], 1)
			s.Must(spec.Add, r.name, earlier, c)
		}
		before = s.state(c)
	}
	prepare()
	var out string
	changes := applettest.EachFault(t, "", func() error {
		var code int
		if code, out = s.Call(spec.Add, r.name, conf, c); code != 0 {
			return spec.Errorf(code, "%s", out)
		}
		return nil
	}, func(change string, err error) {
		if err == nil {
			if !needless(change) {
				t.Errorf("ADD succeeds without %q", change)
			}
			s.Must(spec.Del, r.name, conf, c)
			prepare()
			return
		}
		if strings.Contains(out, "undo") {
			t.Errorf("%q: ADD answers %s", change, out)
		}
		if after := s.state(c); after != before {
			t.Fatalf("%q, answered by %s\nleft behind:\n%s", change, out, kerneltest.Diff(before, after))
		}
	})
	t.Logf("%d calls", changes)
	least := 2
	switch {
	case r.Idle:
		least = 0
	case r.earlier != "", r.name == "loopback", applettest.OnlyAddresses(r.name):
		least = 1
	}
	if changes < least {
		t.Errorf("ADD made %d changes", changes)
	}
	s.Must(spec.Del, r.name, conf, c)
}

// state is a snapshot with what tuning sets here, and without what stays.
func (s *stage) state(c applettest.Container) string {
	s.Helper()
	text := withoutEmptyFilter(s.Snapshot(c))
	for _, key := range []string{"net/ipv4/conf/eth0/arp_filter", "net/ipv4/ip_local_port_range"} {
		value, err := c.NS.Sysctl(key)
		if err != nil && !errors.Is(err, os.ErrNotExist) { // there is no eth0 yet
			s.Fatal(err)
		}
		text += key + " = " + value + "\n"
	}
	return text
}

// emptyFilter is a table filter that has what stays after the last container, as with the reference: the
// chains of firewall, without any rule for one.
var emptyFilter = regexp.MustCompile(`(?m)^table ip6? filter \{\n(?:\s*(?:chain (?:CNI-ADMIN|CNI-FORWARD|FORWARD) \{|type filter hook forward .*|counter .*jump CNI-(?:ADMIN|FORWARD)|\})?\n)*?^\}\n`)

// withoutEmptyFilter is a snapshot without these.
func withoutEmptyFilter(snapshot string) string { return emptyFilter.ReplaceAllString(snapshot, "") }

// needless reports whether an ADD can do without a change: neighbours find out by themselves,
// the next verb makes what the lease store keeps about itself, and packets wait in one queue
// without fq_codel.
func needless(change string) bool {
	return strings.HasPrefix(change, "link set") && strings.Contains(change, " address ") ||
		strings.Contains(change, "ndisc_notify") || strings.HasSuffix(change, "fq_codel") ||
		slices.Contains([]string{"ipam: write", "ipam: mkdir", "ipam: rename", "ipam: symlink", "ipam: remove"}, change)
}

// TestPlugins wants an entry for each plugin that the matrices here and in test/e2e can work
// with: no cell of TestKernelDelMatrix is missing without a reason.
func TestPlugins(t *testing.T) {
	for _, a := range applets.All() {
		p, ok := applettest.Plugins[a.Name]
		plain := applettest.Plain(a.Name, "demo")
		switch {
		case a.Main != nil:
		case !ok:
			t.Errorf("applettest.Plugins has no %s: the tests over all plugins do not call it", a.Name)
		case !json.Valid([]byte(plain)):
			t.Errorf("%s: with its Keys the configuration is not JSON: %s", a.Name, plain)
		case len(p.Invalid) == 0 && p.Excuse("invalid configuration") == "":
			t.Errorf("%s has no Invalid, and no reason in Except", a.Name)
		case p.Below() == nil && p.Excuse(applettest.BelowMissing) == "":
			t.Errorf("%s has no TakeAway, and no reason in Except: applettest.Alone, if it depends on no link of the host", a.Name)
		case (p.Kind != nil || p.Probe != nil) && p.Feature == "":
			t.Errorf("%s has no Feature, the option of the kernel that it needs", a.Name)
		}
	}
}

// DEL of what was never attached succeeds twice, and changes nothing.
func TestKernelDelOfNothing(t *testing.T) {
	eachConf(t, func(t *testing.T, plugin, conf string, _ bool) {
		s := newStage(t, plugin)
		c, conf := s.container("ctr", conf)
		before := s.Snapshot(c)
		s.Must(spec.Del, plugin, conf, c)
		s.Must(spec.Del, plugin, conf, c)
		s.Same("DEL", before, s.Snapshot(c))
	})
}
