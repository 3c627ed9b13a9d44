//go:build !no_flannel && !no_bridge && !no_host_local

package applets_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cnibox/internal/fault"
	"cnibox/internal/kerneltest"
	"cnibox/spec"
)

func init() {
	env, _ := filepath.Abs("../testdata/subnet.env") // relative to the package
	rollbackConfs["flannel"] = `{"cniVersion":"1.1.0","name":"demo","type":"flannel","subnetFile":"` + env + `","dataDir":"$DIR/flannel",
		"delegate":{"bridge":"br0","isDefaultGateway":true,"hairpinMode":true},"ipam":{"dataDir":"$DIR"}}`
}

// A node with flannel on a bridge, and one of the three steps of DEL failing.
func TestKernelFlannelDelFails(t *testing.T) {
	n := newNode(t)
	conf := rollbackConfs["flannel"]
	n.must(spec.Add, "flannel", conf, n.pod("other"))
	p := n.pod("ctr")
	before := n.state(p)
	defer func() { fault.Hook = nil }()
	for _, what := range []string{"link del", "ipam: ", "remove ~"} {
		result := n.must(spec.Add, "flannel", conf, p)
		n.must(spec.Check, "flannel", prev(conf, result), p)
		failed := false
		fault.Hook = func(call string) error {
			if strings.HasPrefix(call, what) {
				failed = true
				return os.ErrPermission
			}
			return nil
		}
		code, out := n.call(t.Context(), spec.Del, "flannel", conf, p)
		fault.Hook = nil
		if !failed || code == 0 {
			t.Errorf("%s: DEL gives %d %s", what, code, out)
		}
		n.must(spec.Del, "flannel", conf, p)
		n.must(spec.Del, "flannel", conf, p)
		if after := n.state(p); after != before {
			t.Fatalf("%s: left behind:\n%s", what, kerneltest.Diff(before, after))
		}
	}
}

// A delegate that leaves an interface of its own name alone: so does flannel.
func TestKernelFlannelTwice(t *testing.T) {
	n := newNode(t)
	p := n.pod("ctr")
	conf := rollbackConfs["flannel"]
	n.must(spec.Add, "flannel", conf, p)
	before := n.state(p)
	if code, out := n.call(t.Context(), spec.Add, "flannel", conf, p); code != spec.CodeBusy {
		t.Errorf("second ADD: %d %s", code, out)
	}
	if after := n.state(p); after != before {
		t.Errorf("a second ADD changed:\n%s", kerneltest.Diff(before, after))
	}
	// another network of flannel's, under the same interface name
	if code, out := n.call(t.Context(), spec.Add, "flannel", strings.Replace(conf, `"demo"`, `"two"`, 1), p); code != spec.CodeBusy {
		t.Errorf("ADD of another network: %d %s", code, out)
	}
	if after := n.state(p); after != before {
		t.Errorf("another network's ADD changed:\n%s", kerneltest.Diff(before, after))
	}
	n.must(spec.Del, "flannel", conf, p)
	if left := n.leases(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// The namespace may be gone, empty or a stale file; all that is outside goes.
func TestKernelFlannelDelTolerates(t *testing.T) {
	n := newNode(t)
	conf := rollbackConfs["flannel"]
	n.must(spec.Add, "flannel", conf, n.pod("other"))
	before := n.state(n.pod("none"))
	for _, netns := range []string{"", "/nonexistent", "/etc/hostname"} {
		for name, spoil := range map[string]func(*string){
			"as it was":         func(*string) {},
			"no state":          func(*string) { os.RemoveAll(filepath.Join(n.dir, "flannel")) },
			"no subnet.env":     func(c *string) { *c = strings.Replace(*c, "subnet.env", "none", 1) },
			"delegate rubbish":  func(c *string) { *c = strings.Replace(*c, `"bridge":"br0"`, `"name":5`, 1) },
			"another bridge":    func(c *string) { *c = strings.Replace(*c, "br0", "br9", 1) },
			"no configuration ": func(c *string) { *c = `{"cniVersion":"1.1.0","name":"demo","type":"flannel","dataDir":"$DIR/flannel"}` },
		} {
			p, del := n.pod("ctr"), conf
			n.must(spec.Add, "flannel", conf, p)
			spoil(&del)
			n.must(spec.Del, "flannel", del, p, "CNI_NETNS="+netns)
			if after := n.state(n.pod("none")); name != "no state" && after != before {
				t.Fatalf("netns %q, %s: left behind:\n%s", netns, name, kerneltest.Diff(before, after))
			} else if name == "no state" { // of the other pod as well
				n.must(spec.Add, "flannel", conf, n.pod("third"))
				n.must(spec.Del, "flannel", conf, n.pod("third"), "CNI_NETNS=")
				before = n.state(n.pod("none"))
			}
		}
	}
}
