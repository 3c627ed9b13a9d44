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

	"github.com/cnibox/cnibox/applets"
	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/dbus/dbustest"
	"github.com/cnibox/cnibox/internal/fault"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// A stage is a host that is prepared for ADD of a plugin.
type stage struct {
	*applettest.Host
	applettest.Plugin
	name string
}

func newStage(t *testing.T, name string) *stage {
	t.Helper()
	return newStageFor(t, name, applettest.Plugins[name])
}

// newStageFor is newStage with a modified descriptor.
func newStageFor(t *testing.T, name string, p applettest.Plugin) *stage {
	t.Helper()
	s := &stage{applettest.NewHost(t), p, name}
	s.NeedChain(t)
	s.Furnish(s.Host)
	return s
}

// container returns a container with the interface that a chained plugin needs, and the
// configuration with the result for that interface.
func (s *stage) container(id, conf string) (applettest.Container, string) {
	s.Helper()
	c := s.Container(id)
	applettest.SetDAD(s.T, c.NS, "0", "0") // plugins need not wait for it
	if s.Ready != nil {
		s.Ready(s.T, c)
	}
	return c, s.makeInterface(c, conf)
}

// makeInterface makes the interface that a chained plugin needs, and returns the configuration with
// its result.
func (s *stage) makeInterface(c applettest.Container, conf string) string {
	s.Helper()
	if s.After == "" {
		return conf
	}
	return applettest.Prev(conf, s.Must(spec.Add, s.After, makerConf(s.After), c))
}

// makerConf returns the configuration for a plugin that makes the interface for a chained one.
func makerConf(plugin string) string {
	switch plugin {
	case "bridge":
		return applettest.GatewayConf
	case "ptp":
		return applettest.PtpConf
	default:
		return applettest.Plain(plugin, "demo")
	}
}

// eachConf runs a test for each configuration of each plugin that makes or changes interfaces.
// single: a host can have one attachment with it at a time.
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

// A rollback is a row of TestKernelRollback: a plugin, its configuration, and the state of the host
// before the verb.
type rollback struct {
	applettest.Plugin
	name, conf string
	other      string // configuration of another attachment; "": none
	earlier    string // configuration of an earlier ADD of this attachment; "": none
	single     bool   // a host can have one attachment at a time

	setUp func(*stage) (state func() string) // called after the interface was made; state is compared as well; may be nil
}

// rollbacks returns the rows of a plugin by name.
func rollbacks(plugin string) map[string]rollback {
	p, rows := applettest.Plugins[plugin], map[string]rollback{}
	of := func(name string, p applettest.Plugin, conf string, single bool) {
		row := rollback{Plugin: p, name: plugin, conf: conf}
		if p.Again != "" {
			again := row
			again.earlier = withMembers(conf, p.Again)
			rows[name+"/again"] = again
		}
		switch {
		case !single:
			row.other = conf
		case p.Other != "":
			row.other = withMembers(conf, p.Other)
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
	for name, row := range singleRows {
		if row.name == plugin {
			row.Plugin = applettest.Plugins[plugin]
			rows[name] = row
		}
	}
	return rows
}

// odd has rows for single plugins.
var singleRows = map[string]rollback{
	"ingress qdisc before/new host": {
		name: "bandwidth", conf: applettest.Conf("bandwidth", `"dataDir":"$DIR/bandwidth",`+applettest.BothLimits),
		setUp: func(s *stage) func() string {
			c := kerneltest.Dial(s.T, s.NS)
			s.NoError(c.Do(rtnl.NewIngress(kerneltest.Link(s.T, c, "veth").Index)))
			return nil
		},
	},
	// A failed ADD restores the address of the bridge.
	"forceAddress/used host": {
		name: "bridge", other: applettest.Conf("bridge", `"bridge":"br0","isGateway":true,`+applettest.IPAM),
		conf: applettest.Conf("bridge", `"bridge":"br0","isGateway":true,"forceAddress":true,"ipam":{"type":"host-local","dataDir":"$DIR",
			"ranges":[[{"subnet":"10.9.0.0/24"}],[{"subnet":"fd00::/64"}]]}`),
	},
	"firewalld/new host": {
		name: "firewall", conf: applettest.Conf("firewall", `"backend":"firewalld","ingressPolicy":"isolated","dbusSocket":"$DIR/bus","dataDir":"$DIR/firewall"`),
		setUp: func(s *stage) func() string {
			socket := dbustest.Bus(s.T)
			s.NoError(os.Symlink(socket, s.Path("bus")))
			return dbustest.Start(s.T, socket).Sources
		},
	},
}

// spoil appends members to a configuration, where they override earlier ones of the same name.
func withMembers(conf, members string) string {
	if members == "" {
		return conf
	}
	return strings.TrimSuffix(conf, "}") + "," + members + "}"
}

// For each plugin and every n, the nth change that a verb makes fails. A failed ADD leaves
// everything unchanged: on a new host, on one with another attachment, and after an earlier ADD of
// the same attachment. After a failed DEL or GC the next DEL deletes the rest. CHECK and GET change
// nothing. dhcp is left out, since its daemon makes the changes. TestKernelEveryKilled of test/e2e
// kills the process instead.
func TestKernelRollback(t *testing.T) {
	kerneltest.OneKernel(t)
	for plugin := range applettest.Plugins {
		if plugin == "dhcp" || applettest.Elsewhere(plugin) {
			continue
		}
		for name, row := range rollbacks(plugin) {
			t.Run(plugin+"/"+name+"/ADD", row.add)
			if name == "keys/used host" {
				t.Run(plugin+"/"+name+"/GC", func(t *testing.T) { row.release(t, spec.GC) })
			} else if _, single := singleRows[name]; single || strings.HasPrefix(name, "keys after ") {
				continue
			}
			if row.other != "" || row.Plugin.Other == "" && row.single {
				t.Run(plugin+"/"+name+"/DEL", func(t *testing.T) { row.release(t, spec.Del) })
			}
		}
	}
}

// A scene is the host of a row, before the verb.
type rollbackHost struct {
	*stage
	rollback
	c      applettest.Container
	conf   string
	extra  func() string
	before string
}

func (r rollback) prepare(t *testing.T) *rollbackHost {
	t.Helper()
	s := &rollbackHost{stage: newStageFor(t, r.name, r.Plugin), rollback: r}
	if r.other != "" {
		other, conf := s.container("other", r.other)
		s.Must(spec.Add, r.name, conf, other)
	}
	s.c, s.conf = s.container("ctr", r.conf)
	// The undo of a member that has ended is its DEL, which leaves what the attachments of a network share.
	if r.name == chain.FoldType && r.other == "" {
		s.Must(spec.Add, r.name, s.conf, s.c)
		s.Must(spec.Del, r.name, s.conf, s.c)
	}
	if r.setUp != nil {
		s.extra = r.setUp(s.stage)
	}
	if r.earlier != "" {
		earlier := strings.Replace(s.conf, r.conf[:len(r.conf)-1], r.earlier[:len(r.earlier)-1], 1)
		s.Must(spec.Add, r.name, earlier, s.c)
	}
	s.before = s.current()
	return s
}

func (s *rollbackHost) current() string {
	s.Helper()
	if s.extra != nil {
		return s.extra() + s.state(s.c)
	}
	return s.state(s.c)
}

// wantUnchanged requires the state from before the verb.
func (s *rollbackHost) wantUnchanged(what string) {
	s.Helper()
	if after := s.current(); after != s.before {
		s.Fatalf("%s\nleft behind:\n%s", what, kerneltest.Diff(s.before, after))
	}
}

// call runs a verb that may fail.
func (s *rollbackHost) call(verb spec.Verb, conf string) (out string, err error) {
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
			retried := change == "nft batch" && r.name == chain.FoldType // in parts
			if !optional(change) && !retried {
				t.Errorf("ADD succeeds without %q", change)
			}
			s.Must(spec.Del, r.name, s.conf, s.c)
			s = r.prepare(t)
			return
		}
		if strings.Contains(out, "undo") {
			t.Errorf("%q: ADD answers %s", change, out)
		}
		s.wantUnchanged(fmt.Sprintf("%q, answered by %s", change, out))
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

// release is the row for DEL, or for GC followed by DEL. The interface is made anew for each
// change, since DEL of a chained plugin may leave settings on it.
func (r rollback) release(t *testing.T, verb spec.Verb) {
	s := newStageFor(t, r.name, r.Plugin)
	if r.other != "" {
		other, conf := s.container("other", r.other)
		s.Must(spec.Add, r.name, conf, other)
	}
	c, conf := s.container("ctr", r.conf)
	failing := conf
	attach := func() {
		if conf == "" {
			conf = s.makeInterface(c, r.conf)
		}
		if failing = conf; verb == spec.GC {
			failing = withMembers(conf, `"cni.dev/valid-attachments":[{"containerID":"other","ifname":"eth0"}]`)
		}
		s.Must(spec.Add, r.name, conf, c)
	}
	detach := func() string {
		s.Must(verb, r.name, failing, c)
		s.Must(spec.Del, r.name, conf, c)
		if s.After != "" {
			s.Must(spec.Del, s.After, makerConf(s.After), c)
		}
		conf = ""
		return s.state(c)
	}
	attach()
	gone := detach() // what all attachments share remains
	attach()
	changes := applettest.EachFault(t, "", func() error {
		code, out := s.Call(verb, r.name, failing, c)
		if code != 0 {
			return spec.Errorf(code, "%s", out)
		}
		return nil
	}, func(change string, err error) {
		// tuning only warns, since the link is about to be deleted.
		warned := r.name == "tuning" && strings.HasPrefix(change, "link set")
		if r.name == chain.FoldType { // what is changed together is tried again one by one
			warned = strings.HasPrefix(change, "link set") || change == "link delete group" || change == "nft batch"
		}
		if err == nil && !optional(change) && !warned {
			t.Errorf("%s succeeds without %q", verb, change)
		}
		s.Same(fmt.Sprintf("%s that failed at %q, and the next one", verb, change), gone, detach())
		attach()
	})
	t.Logf("%d calls", changes)
	s.Same(string(verb), gone, detach())
}

// state returns a snapshot with the sysctls that tuning sets here, and without empty filter tables.
func (s *stage) state(c applettest.Container) string {
	s.Helper()
	text := withoutEmptyFilter(s.Snapshot(c))
	for _, key := range []string{"net/ipv4/conf/eth0/arp_filter", "net/ipv4/ip_local_port_range"} {
		value, err := c.NS.Sysctl(key)
		if err != nil && !errors.Is(err, os.ErrNotExist) { // no eth0 yet
			s.Fatal(err)
		}
		text += key + " = " + value + "\n"
	}
	return text
}

// emptyFilter matches a filter table with the chains of firewall but no rules for containers, which
// remains after the last container, as with the reference.
var emptyFilter = regexp.MustCompile(`(?m)^table ip6? filter \{\n(?:\s*(?:chain (?:CNI-ADMIN|CNI-FORWARD|FORWARD) \{|type filter hook forward .*|counter .*jump CNI-(?:ADMIN|FORWARD)|\})?\n)*?^\}\n`)

func withoutEmptyFilter(snapshot string) string { return emptyFilter.ReplaceAllString(snapshot, "") }

// needless reports whether ADD succeeds without a change: neighbours detect the address themselves,
// the next verb writes the data of the lease store, and without fq_codel packets share one queue.
func optional(change string) bool {
	return strings.HasPrefix(change, "link set") && strings.Contains(change, " address ") ||
		strings.Contains(change, "ndisc_notify") || strings.HasSuffix(change, "fq_codel") ||
		slices.Contains([]string{"ipam: write", "ipam: mkdir", "ipam: rename", "ipam: symlink", "ipam: remove"}, change)
}

// Every plugin has an entry with which the tests over all plugins can work. No cell of
// TestKernelDelMatrix is missing without a reason.
func TestPluginEntriesComplete(t *testing.T) {
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

// DEL of an unknown attachment succeeds, once and again, and changes nothing.
func TestKernelDelOfUnknown(t *testing.T) {
	eachConf(t, func(t *testing.T, plugin, conf string, _ bool) {
		s := newStage(t, plugin)
		c, conf := s.container("ctr", conf)
		before := s.Snapshot(c)
		s.Must(spec.Del, plugin, conf, c)
		s.Must(spec.Del, plugin, conf, c)
		s.Same("DEL", before, s.Snapshot(c))
	})
}
