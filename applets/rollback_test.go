package applets_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"cnibox/applets"
	"cnibox/internal/fault"
	"cnibox/internal/kerneltest"
	"cnibox/rtnl"
	"cnibox/spec"
)

// rollbackConfs holds for each interface plugin configurations that take all
// of its steps; each one's test file adds its own.
var rollbackConfs = map[string]string{}

// rollbackHosts make what the host of a plugin has beside lo, or skip the test where
// the kernel has not what the plugin needs.
var rollbackHosts = map[string]func(n *node){}

// TestKernelRollback makes the nth call that changes something fail, for every
// n: afterwards nothing differs from before, on a host where the bridge is new
// and on one where other attachments use it.
func TestKernelRollback(t *testing.T) {
	for name, conf := range rollbackConfs {
		applet := appletOf(name)
		t.Run(name+"/fresh", func(t *testing.T) { rollback(t, applet, conf, false) })
		if !strings.HasSuffix(name, "-alone") { // a second attachment is not to be had
			t.Run(name+"/used", func(t *testing.T) { rollback(t, applet, conf, true) })
		}
	}
}

// appletOf is the applet of a configuration: what its name says before the last "-".
func appletOf(name string) string {
	for {
		if _, ok := applets.Lookup(name); ok {
			return name
		}
		i := strings.LastIndex(name, "-")
		if i < 0 {
			return name
		}
		name = name[:i]
	}
}

// TestRollbackConfs wants each interface plugin to be in that table. The others are in
// TestKernelEveryRollback, of the whole program.
func TestRollbackConfs(t *testing.T) {
	others := []string{"bandwidth", "dhcp", "firewall", "flannel", "host-local", "loopback", "portmap", "sbr", "static", "tuning", "vrf"}
	there := map[string]bool{}
	for name := range rollbackConfs {
		there[appletOf(name)] = true
	}
	for _, a := range applets.All() {
		if a.Main == nil && !there[a.Name] && !slices.Contains(others, a.Name) {
			t.Errorf("rollbackConfs has no %s", a.Name)
		}
	}
}

// rollbackNode is a host as the plugin needs it.
func rollbackNode(t *testing.T, applet string) *node {
	n := newNode(t)
	if prepare := rollbackHosts[applet]; prepare != nil {
		prepare(n)
		return n
	}
	kerneltest.Need(t, "CONFIG_BRIDGE", func() error {
		return kerneltest.Dial(t, kerneltest.NS(t)).AddLink(rtnl.LinkSpec{Name: "br9", Kind: rtnl.Bridge{}})
	})
	return n
}

// quickPod is a container in which duplicate detection, where a plugin waits for it, is
// over at once.
func quickPod(n *node) pod {
	p := n.pod("ctr")
	detection(n.t, p.ns, "0", "0")
	return p
}

func rollback(t *testing.T, applet, conf string, used bool) {
	n := rollbackNode(t, applet)
	if used {
		n.must(spec.Add, applet, conf, n.pod("other"))
	}
	p := quickPod(n)
	defer func() { fault.Hook = nil }()
	for nth := 1; ; nth++ {
		before := n.state(p)
		calls, failed := 0, ""
		fault.Hook = func(what string) error {
			if calls++; calls != nth {
				return nil
			}
			failed = what
			return errors.New("made to fail")
		}
		code, out := n.call(t.Context(), spec.Add, applet, conf, p)
		fault.Hook = nil
		if failed == "" {
			if code != 0 || nth < 3 {
				t.Fatalf("ADD made %d calls and ended with %s", nth-1, out)
			}
			n.must(spec.Del, applet, conf, p)
			return
		}
		if code == 0 {
			if !needless(failed) {
				t.Errorf("call %d, %q: ADD succeeds without it", nth, failed)
			}
			n.must(spec.Del, applet, conf, p)
		}
		if code == 0 && !used { // what others may use by now, as the bridge, stays
			n = rollbackNode(t, applet)
			p = quickPod(n)
			continue
		}
		if after := n.state(p); after != before {
			t.Fatalf("call %d, %q, answered by %s\nleft behind:\n%s", nth, failed, out, kerneltest.Diff(before, after))
		}
	}
}

// needless tells what an ADD can do without: neighbours find out by themselves,
// and what the lease store keeps about itself is made by the next verb.
func needless(what string) bool {
	return strings.HasPrefix(what, "link set") && strings.Contains(what, " address ") ||
		strings.Contains(what, "ndisc_notify") ||
		slices.Contains([]string{"ipam: write", "ipam: mkdir", "ipam: touch", "ipam: symlink", "ipam: seal", "ipam: remove"}, what)
}

// eachFault calls add until it meets no fault: in the k-th call the k-th change fails of those
// whose text begins with prefix, and failed looks at what that has left. The last call has to
// succeed. It returns the number of changes.
func eachFault(t *testing.T, prefix string, add func() error, failed func(k int, err error)) int {
	t.Helper()
	defer func() { fault.Hook = nil }()
	for k := 1; ; k++ {
		changes := 0
		fault.Hook = func(what string) error {
			if !strings.HasPrefix(what, prefix) {
				return nil
			}
			if changes++; changes == k {
				return errors.New("injected")
			}
			return nil
		}
		err := add()
		fault.Hook = nil
		if changes < k {
			if err != nil {
				t.Fatalf("without a fault: %v", err)
			}
			return changes
		}
		failed(k, err)
	}
}
