package flannel_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/spec"
)

// A second ADD is an error that changes nothing, and so is one of another network for the same
// interface name.
func TestKernelFlannelSecondAdd(t *testing.T) {
	h := applettest.NewHost(t)
	h.SubnetEnv()
	p := h.Container("ctr")
	conf := applettest.FlannelConf
	h.Must(spec.Add, "flannel", conf, p)
	before := h.Snapshot(p)
	if code, out := h.Call(spec.Add, "flannel", conf, p); code != spec.CodeBusy {
		t.Errorf("second ADD: %d %s", code, out)
	}
	if after := h.Snapshot(p); after != before {
		t.Errorf("a second ADD changed:\n%s", kerneltest.Diff(before, after))
	}
	// another flannel network, same interface name
	if code, out := h.Call(spec.Add, "flannel", strings.Replace(conf, `"demo"`, `"two"`, 1), p); code != spec.CodeBusy {
		t.Errorf("ADD of another network: %d %s", code, out)
	}
	if after := h.Snapshot(p); after != before {
		t.Errorf("another network's ADD changed:\n%s", kerneltest.Diff(before, after))
	}
	h.Must(spec.Del, "flannel", conf, p)
	if left := h.Leases(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// DEL succeeds if the namespace is gone, empty or a regular file, and if the configuration or the
// state is incomplete. It deletes everything on the host.
func TestKernelFlannelDelWithMissingParts(t *testing.T) {
	h := applettest.NewHost(t)
	h.SubnetEnv()
	conf := applettest.FlannelConf
	h.Must(spec.Add, "flannel", conf, h.Container("other"))
	before := h.Snapshot(h.Container("none"))
	for _, netns := range []string{"", "/nonexistent", "/etc/hostname"} {
		for name, spoil := range map[string]func(*string){
			"unchanged":         func(*string) {},
			"no state":          func(*string) { os.RemoveAll(filepath.Join(h.Dir, "flannel")) },
			"no subnet.env":     func(c *string) { *c = strings.Replace(*c, "subnet.env", "none", 1) },
			"delegate rubbish":  func(c *string) { *c = strings.Replace(*c, `"bridge":"br0"`, `"name":5`, 1) },
			"another bridge":    func(c *string) { *c = strings.Replace(*c, "br0", "br9", 1) },
			"no configuration ": func(c *string) { *c = `{"cniVersion":"1.1.0","name":"demo","type":"flannel","dataDir":"$DIR/flannel"}` },
		} {
			p, del := h.Container("ctr"), conf
			h.Must(spec.Add, "flannel", conf, p)
			spoil(&del)
			h.Must(spec.Del, "flannel", del, p, "CNI_NETNS="+netns)
			if after := h.Snapshot(h.Container("none")); name != "no state" && after != before {
				t.Fatalf("netns %q, %s: left behind:\n%s", netns, name, kerneltest.Diff(before, after))
			} else if name == "no state" { // of the other container as well
				h.Must(spec.Add, "flannel", conf, h.Container("third"))
				h.Must(spec.Del, "flannel", conf, h.Container("third"), "CNI_NETNS=")
				before = h.Snapshot(h.Container("none"))
			}
		}
	}
}
