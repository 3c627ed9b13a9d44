package applets_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"cnibox/applets"
	"cnibox/applets/applettest"
	"cnibox/internal/dbus/dbustest"
	"cnibox/internal/fault"
	"cnibox/internal/kerneltest"
	"cnibox/rtnl"
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

// container returns a container with the interface that this plugin changes, if it creates none,
// and the configuration with the result of that interface.
func (s *stage) container(id, conf string) (applettest.Container, string) {
	s.Helper()
	c := s.Container(id)
	applettest.SetDAD(s.T, c.NS, "0", "0") // where a plugin waits for it, it is over at once
	if s.Ready != nil {
		s.Ready(s.T, c)
	}
	return c, s.after(c, conf)
}

// after makes the interface that this plugin changes, and returns the configuration with its result.
func (s *stage) after(c applettest.Container, conf string) string {
	s.Helper()
	if s.After == "" {
		return conf
	}
	return applettest.Prev(conf, s.Must(spec.Add, s.After, before(s.After), c))
}

// before returns the configuration of a plugin that creates the interface for another one.
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

// A rollback is a row of the table of verbs that fail: a plugin, its configuration, and the state
// before.
type rollback struct {
	applettest.Plugin
	name, conf string
	other      string // the configuration of another attachment; empty: there is none
	earlier    string // that of an earlier ADD of the same; empty: there is none
	single     bool   // a host can have no other

	furnish func(*stage) (state func() string) // after the interface is there; the state is beside that of the host
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
			rows[name+"/new host"] = rollback{Plugin: p, name: plugin, conf: conf, single: single[name] != ""}
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
	for name, row := range odd {
		if row.name == plugin {
			row.Plugin = applettest.Plugins[plugin]
			rows[name] = row
		}
	}
	return rows
}

// odd are rows for a single plugin, by name.
var odd = map[string]rollback{
	"ingress qdisc before/new host": {
		name: "bandwidth", conf: applettest.Conf("bandwidth", `"dataDir":"$DIR/bandwidth",`+applettest.BothLimits),
		furnish: func(s *stage) func() string {
			c := kerneltest.Dial(s.T, s.NS)
			s.NoError(c.Do(rtnl.NewIngress(kerneltest.Link(s.T, c, "veth").Index)))
			return nil
		},
	},
	// the address of the bridge is another one, which a failed ADD restores
	"forceAddress/used host": {
		name: "bridge", other: applettest.Conf("bridge", `"bridge":"br0","isGateway":true,`+applettest.IPAM),
		conf: applettest.Conf("bridge", `"bridge":"br0","isGateway":true,"forceAddress":true,"ipam":{"type":"host-local","dataDir":"$DIR",
			"ranges":[[{"subnet":"10.9.0.0/24"}],[{"subnet":"fd00::/64"}]]}`),
	},
	"firewalld/new host": {
		name: "firewall", conf: applettest.Conf("firewall", `"backend":"firewalld","ingressPolicy":"isolated","dbusSocket":"$DIR/bus","dataDir":"$DIR/firewall"`),
		furnish: func(s *stage) func() string {
			socket := dbustest.Bus(s.T)
			s.NoError(os.Symlink(socket, s.Path("bus")))
			return dbustest.Start(s.T, socket).Sources
		},
	},
}

// spoil adds members to a configuration, before those of the same name.
func spoil(conf, members string) string {
	if members == "" {
		return conf
	}
	return strings.TrimSuffix(conf, "}") + "," + members + "}"
}

// TestKernelRollback is the table of verbs that fail. For each plugin it makes the nth call that
// changes something fail, for every n. A failed ADD leaves everything as it was: on a new host, on
// one with another attachment, and after an earlier ADD of the same. After a failed DEL or GC the
// next one does the rest. CHECK and GET change nothing. The daemon makes the changes of dhcp.
// TestKernelEveryKilled of test/e2e kills the process instead of making a call fail.
func TestKernelRollback(t *testing.T) {
	for plugin := range applettest.Plugins {
		if plugin == "dhcp" || applettest.Elsewhere(plugin) {
			continue
		}
		for name, row := range rollbacks(plugin) {
			t.Run(plugin+"/"+name+"/ADD", row.add)
			if name == "keys/used host" {
				t.Run(plugin+"/"+name+"/GC", func(t *testing.T) { row.release(t, spec.GC) })
			} else if _, odd := odd[name]; odd || strings.HasPrefix(name, "keys after ") {
				continue
			}
			if row.other != "" || row.Plugin.Other == "" && row.single {
				t.Run(plugin+"/"+name+"/DEL", func(t *testing.T) { row.release(t, spec.Del) })
			}
		}
	}
}

// A scene is the host of a row, before the verb.
type scene struct {
	*stage
	rollback
	c      applettest.Container
	conf   string
	more   func() string
	before string
}

// prepare makes one.
func (r rollback) prepare(t *testing.T) *scene {
	t.Helper()
	s := &scene{stage: newStageOf(t, r.name, r.Plugin), rollback: r}
	if r.other != "" {
		other, conf := s.container("other", r.other)
		s.Must(spec.Add, r.name, conf, other)
	}
	s.c, s.conf = s.container("ctr", r.conf)
	if r.furnish != nil {
		s.more = r.furnish(s.stage)
	}
	if r.earlier != "" {
		earlier := strings.Replace(s.conf, r.conf[:len(r.conf)-1], r.earlier[:len(r.earlier)-1], 1)
		s.Must(spec.Add, r.name, earlier, s.c)
	}
	s.before = s.now()
	return s
}

func (s *scene) now() string {
	s.Helper()
	if s.more != nil {
		return s.more() + s.state(s.c)
	}
	return s.state(s.c)
}

// as requires the state from before.
func (s *scene) as(what string) {
	s.Helper()
	if after := s.now(); after != s.before {
		s.Fatalf("%s\nleft behind:\n%s", what, kerneltest.Diff(s.before, after))
	}
}

// call is a verb that may fail.
func (s *scene) call(verb spec.Verb, conf string) (out string, err error) {
	s.Helper()
	code, out := s.Call(verb, s.rollback.name, conf, s.c)
	if code != 0 {
		err = spec.Errorf(code, "%s", out)
	}
	return out, err
}

func (r rollback) add(t *testing.T) {
	s := r.prepare(t)
	var out string
	changes := applettest.EachFault(t, "", func() (err error) {
		out, err = s.call(spec.Add, s.conf)
		return err
	}, func(change string, err error) {
		if err == nil {
			if !needless(change) {
				t.Errorf("ADD succeeds without %q", change)
			}
			s.Must(spec.Del, r.name, s.conf, s.c)
			s = r.prepare(t)
			return
		}
		if strings.Contains(out, "undo") {
			t.Errorf("%q: ADD answers %s", change, out)
		}
		s.as(fmt.Sprintf("%q, answered by %s", change, out))
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
	prev := s.conf
	if applettest.Plugins[r.name].After == "" {
		prev = applettest.Prev(s.conf, out)
	}
	for _, verb := range []spec.Verb{spec.Check, spec.Get} {
		fault.Hook = func(what string) error { t.Errorf("%s: %s", verb, what); return nil }
		code, text := s.Call(verb, r.name, prev, s.c)
		if fault.Hook = nil; code != 0 {
			t.Errorf("%s: %s", verb, text)
		}
	}
	s.Must(spec.Del, r.name, s.conf, s.c)
}

// release is the row for DEL, or for GC followed by DEL. The interface is new each time, so what
// DEL of a chained plugin leaves on it is deleted with it.
func (r rollback) release(t *testing.T, verb spec.Verb) {
	s := newStageOf(t, r.name, r.Plugin)
	if r.other != "" {
		other, conf := s.container("other", r.other)
		s.Must(spec.Add, r.name, conf, other)
	}
	c, conf := s.container("ctr", r.conf)
	failing := conf
	attach := func() {
		if conf == "" {
			conf = s.after(c, r.conf)
		}
		if failing = conf; verb == spec.GC {
			failing = spoil(conf, `"cni.dev/valid-attachments":[{"containerID":"other","ifname":"eth0"}]`)
		}
		s.Must(spec.Add, r.name, conf, c)
	}
	detach := func() string {
		s.Must(verb, r.name, failing, c)
		s.Must(spec.Del, r.name, conf, c)
		if s.After != "" {
			s.Must(spec.Del, s.After, before(s.After), c)
		}
		conf = ""
		return s.state(c)
	}
	attach()
	gone := detach() // what is for all stays
	attach()
	changes := applettest.EachFault(t, "", func() error {
		code, out := s.Call(verb, r.name, failing, c)
		if code != 0 {
			return spec.Errorf(code, "%s", out)
		}
		return nil
	}, func(change string, err error) {
		// tuning warns: the link is about to be deleted
		if err == nil && !needless(change) && !(r.name == "tuning" && strings.HasPrefix(change, "link set")) {
			t.Errorf("%s succeeds without %q", verb, change)
		}
		s.Same(fmt.Sprintf("%s that failed at %q, and the next one", verb, change), gone, detach())
		attach()
	})
	t.Logf("%d calls", changes)
	s.Same(string(verb), gone, detach())
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

// emptyFilter is a filter table with what stays after the last container, as with the reference:
// the chains of firewall without rules for containers.
var emptyFilter = regexp.MustCompile(`(?m)^table ip6? filter \{\n(?:\s*(?:chain (?:CNI-ADMIN|CNI-FORWARD|FORWARD) \{|type filter hook forward .*|counter .*jump CNI-(?:ADMIN|FORWARD)|\})?\n)*?^\}\n`)

// withoutEmptyFilter returns a snapshot without these.
func withoutEmptyFilter(snapshot string) string { return emptyFilter.ReplaceAllString(snapshot, "") }

// needless reports whether an ADD works without a change: neighbours detect the address themselves,
// the next verb writes the lease store's own data, and without fq_codel packets share one queue.
func needless(change string) bool {
	return strings.HasPrefix(change, "link set") && strings.Contains(change, " address ") ||
		strings.Contains(change, "ndisc_notify") || strings.HasSuffix(change, "fq_codel") ||
		slices.Contains([]string{"ipam: write", "ipam: mkdir", "ipam: rename", "ipam: symlink", "ipam: remove"}, change)
}

// TestPlugins requires an entry for each plugin with which the matrices here and in test/e2e can
// work: no cell of TestKernelDelMatrix is missing without a reason.
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

// DEL of an unknown attachment succeeds twice, and changes nothing.
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
