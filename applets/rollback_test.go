package applets_test

import (
	"encoding/json"
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
	s := &stage{applettest.NewHost(t), applettest.Plugins[name], name}
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
		conf = applettest.Prev(conf, s.Must(spec.Add, s.After, s.before(), c))
	}
	return c, conf
}

// before is the configuration of the plugin that makes the interface.
func (s *stage) before() string {
	if s.After == "bridge" {
		return applettest.GatewayConf
	}
	return applettest.PtpConf
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

// TestKernelRollback makes the nth call that changes something fail, for every n: afterwards
// nothing differs from before, on a new host and on one where there is another attachment.
func TestKernelRollback(t *testing.T) {
	eachConf(t, func(t *testing.T, plugin, conf string, single bool) {
		t.Run("new host", func(t *testing.T) { rollback(t, plugin, conf, false) })
		if !single {
			t.Run("used host", func(t *testing.T) { rollback(t, plugin, conf, true) })
		}
	})
}

func rollback(t *testing.T, name, bare string, used bool) {
	var s *stage
	var c applettest.Container
	var conf string
	prepare := func() {
		s = newStage(t, name)
		if used {
			other, conf := s.container("other", bare)
			s.Must(spec.Add, name, conf, other)
		}
		c, conf = s.container("ctr", bare)
	}
	prepare()
	var before, out string
	changes := applettest.EachFault(t, "", func() error {
		before = s.Snapshot(c)
		var code int
		if code, out = s.Call(spec.Add, name, conf, c); code != 0 {
			return spec.Errorf(code, "%s", out)
		}
		return nil
	}, func(change string, err error) {
		if err == nil {
			if !needless(change) {
				t.Errorf("ADD succeeds without %q", change)
			}
			s.Must(spec.Del, name, conf, c)
			if !used { // what others may use by now, as the bridge, stays
				prepare()
				return
			}
		}
		if after := withoutEmptyFilter(s.Snapshot(c)); after != withoutEmptyFilter(before) {
			t.Fatalf("%q, answered by %s\nleft behind:\n%s", change, out, kerneltest.Diff(before, after))
		}
	})
	if changes < 2 {
		t.Errorf("ADD made %d changes", changes)
	}
	s.Must(spec.Del, name, conf, c)
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
