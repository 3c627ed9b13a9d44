package portmap_test

import (
	"fmt"
	"strings"
	"testing"

	"cnibox/applets/applettest"
	"cnibox/internal/nfttest"
	"cnibox/spec"
)

// A runtime gives each network of a container the same ports. The last ADD has them until its DEL,
// and DEL of another one leaves them: podman network connect, and disconnect of the first.
func TestKernelPortmapSeveralNetworks(t *testing.T) {
	n := newBridged(t)
	n.Serve(n.C1.NS, "first")
	n.Serve(n.C2.NS, "second")
	verb := func(v spec.Verb, ifName, id string) error {
		t.Helper()
		last := map[string]string{"eth0": "1", "eth1": "2"}[ifName] // whose servers answer
		prev := fmt.Sprintf(`{"cniVersion":"1.1.0","ips":[{"address":"10.9.0.1%s/24"},{"address":"fd00:9::1%s/64"}]}`, last, last)
		_, err := n.Do(v, "portmap", spec.Call{ContainerID: id, IfName: ifName, NetNS: n.C1.Path}, `"runtimeConfig":{"portMappings":[`+applettest.BothProtocols+`]}`, prev)
		return err
	}
	answers := func(when, want string) {
		t.Helper()
		for _, network := range []string{"tcp", "udp"} {
			if got := n.Ask(n.Outside, network, "192.0.2.1:8080"); got != want {
				t.Errorf("%s %s: got %q, want %q", network, when, got, want)
			}
		}
		if got := n.Ask(n.Outside, "tcp", "[fd00:2::1]:8080"); strings.Fields(got)[0] != strings.Fields(want)[0] {
			t.Errorf("IPv6 %s: %q", when, got)
		}
	}
	n.NoError(verb(spec.Add, "eth0", "c1"))
	answers("of the first", "first 192.0.2.2")
	n.NoError(verb(spec.Add, "eth1", "c1"))
	answers("of the second", "second 192.0.2.2")
	if err := verb(spec.Add, "eth0", "c2"); err == nil || spec.AsError(err).Code != spec.CodeBusy {
		t.Errorf("another container: %v", err)
	}
	for _, ifName := range []string{"eth0", "eth1"} {
		if err := verb(spec.Check, ifName, "c1"); err != nil {
			t.Errorf("CHECK of %s: %v", ifName, err)
		}
	}
	n.NoError(verb(spec.Del, "eth0", "c1"))
	answers("after DEL of the first", "second 192.0.2.2")
	n.NoError(verb(spec.Add, "eth0", "c1"))
	answers("after another ADD of the first", "first 192.0.2.2")
	n.NoError(verb(spec.Del, "eth0", "c1"))
	answers("after DEL of the last that asked", "no answer")
	if err := verb(spec.Check, "eth1", "c1"); err == nil {
		t.Error("CHECK without the ports succeeds")
	}
	n.NoError(verb(spec.Del, "eth1", "c1"))
	if text := nfttest.Ruleset(t, n.NS); strings.Contains(text, "8080") || n.Files() != "" {
		t.Errorf("left: %s\n%s", n.Files(), text)
	}
}

// GC of one attachment leaves ports that another one of the container has.
func TestKernelPortmapSeveralNetworksGC(t *testing.T) {
	n := newBridged(t)
	n.Serve(n.C2.NS, "second")
	n.NoError(n.Publish(spec.Add, "c1", applettest.BothProtocols))
	_, err := n.Do(spec.Add, "portmap", spec.Call{ContainerID: "c1", IfName: "eth1", NetNS: n.C1.Path}, `"runtimeConfig":{"portMappings":[`+applettest.BothProtocols+`]}`,
		`{"cniVersion":"1.1.0","ips":[{"address":"10.9.0.12/24"}]}`)
	n.NoError(err)
	n.Result(n.Do(spec.GC, "portmap", spec.Call{}, `"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth1"}]`, ""))
	for _, network := range []string{"tcp", "udp"} {
		if got := n.Ask(n.Outside, network, "192.0.2.1:8080"); got != "second 192.0.2.2" {
			t.Errorf("%s after GC: %q", network, got)
		}
	}
	n.Result(n.Do(spec.GC, "portmap", spec.Call{}, `"cni.dev/valid-attachments":[]`, ""))
	if text := nfttest.Ruleset(t, n.NS); strings.Contains(text, "8080") || n.Files() != "" {
		t.Errorf("left: %s\n%s", n.Files(), text)
	}
}

// containerd and nerdctl attach the networks of a container at the same time: one of them has the
// ports then.
func TestKernelPortmapSeveralNetworksConcurrent(t *testing.T) {
	n := newBridged(t)
	verb := func(v spec.Verb, ifName string) error {
		_, err := n.Do(v, "portmap", spec.Call{ContainerID: "c1", IfName: ifName, NetNS: n.C1.Path},
			`"runtimeConfig":{"portMappings":[`+applettest.BothProtocols+`]}`, `{"cniVersion":"1.1.0","ips":[{"address":"10.9.0.11/24"}]}`)
		return err
	}
	all := []string{"eth0", "eth1", "eth2", "eth3", "eth4", "eth5"}
	done := make(chan error)
	for _, ifName := range all {
		go func() { done <- verb(spec.Add, ifName) }()
	}
	for range all {
		n.NoError(<-done)
	}
	for _, ifName := range all {
		n.NoError(verb(spec.Check, ifName))
	}
	for _, ifName := range all {
		n.NoError(verb(spec.Del, ifName))
	}
	if text := nfttest.Ruleset(t, n.NS); strings.Contains(text, "8080") || n.Files() != "" {
		t.Errorf("left: %s\n%s", n.Files(), text)
	}
}

// An ADD that fails leaves the ports of the container's other attachment, and nothing of its own.
func TestKernelPortmapSeveralNetworksRollback(t *testing.T) {
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
