package portmap_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/nfttest"
	"github.com/cnibox/cnibox/spec"
)

// A runtime passes the same ports to each network of a container. The first network publishes them,
// and after its DEL the next one, as with podman network connect and disconnect. In the reference
// each network has rules, and the oldest apply.
func TestKernelPortmapSeveralNetworks(t *testing.T) {
	n := newBridged(t)
	n.Listen(n.C1.NS, "first")
	n.Listen(n.C2.NS, "second")
	verb := func(v spec.Verb, ifName, id string) error {
		t.Helper()
		last := map[string]string{"eth0": "1", "eth1": "2", "eth2": "2"}[ifName] // container that answers
		prev := fmt.Sprintf(`{"cniVersion":"1.1.0","ips":[{"address":"10.9.0.1%s/24"},{"address":"fd00:9::1%s/64"}]}`, last, last)
		_, err := n.Do(v, "portmap", spec.Call{ContainerID: id, IfName: ifName, NetNS: n.C1.Path}, `"runtimeConfig":{"portMappings":[`+applettest.BothProtocols+`]}`, prev)
		return err
	}
	for _, ifName := range []string{"eth0", "eth1", "eth2", "eth1", "eth0"} {
		n.NoError(verb(spec.Add, ifName, "c1"))
	}
	if err := verb(spec.Add, "eth0", "c2"); err == nil || spec.AsError(err).Code != spec.CodeBusy {
		t.Errorf("another container: %v", err)
	}
	for i, tt := range []struct{ del, answers string }{
		{"eth9", "first 192.0.2.2"}, {"eth0", "second 192.0.2.2"}, {"eth1", "second 192.0.2.2"}, {"eth2", "no answer"},
	} {
		n.NoError(verb(spec.Del, tt.del, "c1"))
		for _, network := range []string{"tcp", "udp"} {
			if got := n.Ask(n.Outside, network, "192.0.2.1:8080"); got != tt.answers {
				t.Errorf("%s after DEL of %s: got %q, want %q", network, tt.del, got, tt.answers)
			}
		}
		if got := n.Ask(n.Outside, "tcp", "[fd00:2::1]:8080"); strings.Fields(got)[0] != strings.Fields(tt.answers)[0] {
			t.Errorf("IPv6 after DEL of %s: %q", tt.del, got)
		}
		for _, ifName := range []string{"eth0", "eth1", "eth2"} {
			if err := verb(spec.Check, ifName, "c1"); (err == nil) != (ifName >= fmt.Sprintf("eth%d", i)) {
				t.Errorf("CHECK of %s after DEL of %s: %v", ifName, tt.del, err)
			}
		}
	}
	text := nfttest.Ruleset(t, n.NS)
	if strings.Contains(text, "8080") || n.Files() != "" {
		t.Errorf("left: %s\n%s", n.Files(), text)
	}
}

// GC transfers the ports of a stale attachment to the container's next network, unless that is
// stale too.
func TestKernelPortmapGCTransfersPorts(t *testing.T) {
	n := newBridged(t)
	n.Listen(n.C2.NS, "second")
	n.NoError(n.Publish(spec.Add, "c1", applettest.BothProtocols))
	for ifName, last := range map[string]string{"eth1": "1", "eth2": "2"} {
		_, err := n.Do(spec.Add, "portmap", spec.Call{ContainerID: "c1", IfName: ifName, NetNS: n.C1.Path}, `"runtimeConfig":{"portMappings":[`+applettest.BothProtocols+`]}`,
			`{"cniVersion":"1.1.0","ips":[{"address":"10.9.0.1`+last+`/24"}]}`)
		n.NoError(err)
	}
	n.Result(n.Do(spec.GC, "portmap", spec.Call{}, `"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth2"}]`, ""))
	for _, network := range []string{"tcp", "udp"} {
		if got := n.Ask(n.Outside, network, "192.0.2.1:8080"); got != "second 192.0.2.2" {
			t.Errorf("%s after GC: %q", network, got)
		}
	}
	n.Result(n.Do(spec.GC, "portmap", spec.Call{}, `"cni.dev/valid-attachments":[]`, ""))
	text := nfttest.Ruleset(t, n.NS)
	if strings.Contains(text, "8080") || n.Files() != "" {
		t.Errorf("left: %s\n%s", n.Files(), text)
	}
}

// containerd and nerdctl attach the networks of a container concurrently. After each DEL the next
// network becomes the owner.
func TestKernelPortmapConcurrentNetworks(t *testing.T) {
	n := newBridged(t)
	verb := func(v spec.Verb, ifName string) error {
		_, err := n.Do(v, "portmap", spec.Call{ContainerID: "c1", IfName: ifName, NetNS: n.C1.Path},
			`"runtimeConfig":{"portMappings":[`+applettest.BothProtocols+`]}`, `{"cniVersion":"1.1.0","ips":[{"address":"10.9.0.11/24"}]}`)
		return err
	}
	for range 5 {
		all := []string{"eth0", "eth1", "eth2", "eth3", "eth4", "eth5"}
		done := make(chan error)
		for _, ifName := range all {
			go func() { done <- verb(spec.Add, ifName) }()
		}
		for range all {
			n.NoError(<-done)
		}
		for i, ifName := range all {
			n.NoError(verb(spec.Del, ifName))
			text := nfttest.Ruleset(t, n.NS)
			if strings.Contains(text, "8080") != (i < len(all)-1) {
				t.Fatalf("published after DEL of %v: %t\n%s\n%s", all[:i+1], i == len(all)-1, n.Files(), text)
			}
		}
	}
}

// A deleted attachment does not become the next owner.
func TestKernelPortmapDeletedNotNextOwner(t *testing.T) {
	n := newBridged(t)
	verb := func(v spec.Verb, ifName string) {
		t.Helper()
		_, err := n.Do(v, "portmap", spec.Call{ContainerID: "c1", IfName: ifName, NetNS: n.C1.Path},
			`"runtimeConfig":{"portMappings":[`+applettest.BothProtocols+`]}`, `{"cniVersion":"1.1.0","ips":[{"address":"10.9.0.11/24"}]}`)
		n.NoError(err)
	}
	verb(spec.Add, "eth0")
	verb(spec.Add, "eth1")
	verb(spec.Del, "eth1")
	verb(spec.Del, "eth0")
	text := nfttest.Ruleset(t, n.NS)
	if strings.Contains(text, "8080") || n.Files() != "" {
		t.Errorf("left: %s\n%s", n.Files(), text)
	}
}

// A failed ADD of another interface of the container, whose ports are pending, keeps the ports of
// the first attachment and leaves nothing of its own. TestKernelRollback does not have this case.
func TestKernelPortmapRollbackKeepsPending(t *testing.T) {
	n := newBridged(t)
	add := func(ifName string) error {
		_, err := n.Do(spec.Add, "portmap", spec.Call{ContainerID: "c1", IfName: ifName, NetNS: n.C1.Path},
			`"runtimeConfig":{"portMappings":[`+applettest.BothProtocols+`]}`, `{"cniVersion":"1.1.0","ips":[{"address":"10.9.0.11/24"},{"address":"fd00:9::11/64"}]}`)
		return err
	}
	state := func() string {
		return n.Files() + "\n" + nfttest.Ruleset(t, n.NS)
	}
	n.NoError(add("eth0"))
	before := state()
	changes := applettest.EachFault(t, "", func() error { return add("eth1") }, func(change string, err error) {
		if after := state(); err == nil || after != before {
			t.Errorf("%s failed: %v, and made of\n%s\nthis:\n%s", change, err, before, after)
		}
	})
	if changes < 2 {
		t.Errorf("only %d changes asked", changes)
	}
}
