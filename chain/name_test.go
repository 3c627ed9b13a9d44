package chain_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/chain"
)

// The commands have the names that people use, the arguments of the ADD, and nothing that a shell would change.
func TestCommandsOfEntry(t *testing.T) {
	named := "/run/netns/blue"
	for name, tt := range map[string]struct {
		entry    chain.Entry
		del, add string
	}{
		"a named namespace": {chain.Entry{ContainerID: chain.DerivedID(named), IfName: "eth0", NetNS: named},
			"cni-exec del n blue", "cni-exec add n blue"},
		"a path": {chain.Entry{ContainerID: chain.DerivedID("/proc/7/ns/net"), IfName: "eth0", NetNS: "/proc/7/ns/net"},
			"cni-exec del n /proc/7/ns/net", "cni-exec add n /proc/7/ns/net"},
		"ports": {chain.Entry{ContainerID: "c1", IfName: "eth1", NetNS: named, CapabilityArgs: map[string]json.RawMessage{"portMappings": json.RawMessage(
			`[{"hostPort":8080,"containerPort":80,"protocol":"TCP"},{"hostPort":53,"containerPort":5353,"protocol":"udp","hostIP":"192.0.2.1"},{"hostPort":0,"containerPort":1}]`)}},
			"cni-exec del n --container-id c1 -i eth1", "cni-exec add n blue --container-id c1 -i eth1 -p 8080:80 -p 192.0.2.1:53:5353/udp"},
		"arguments": {chain.Entry{ContainerID: "c1", IfName: "eth0", NetNS: "/tmp/it's", Args: [][2]string{{"IP", "10.1.0.5"}, {"K", "V"}},
			CapabilityArgs: map[string]json.RawMessage{"bandwidth": json.RawMessage(`{"ingressRate":8}`)}},
			"cni-exec del n --container-id c1",
			`CNI_ARGS='IP=10.1.0.5;K=V' CAP_ARGS='{"bandwidth":{"ingressRate":8}}' cni-exec add n '/tmp/it'\''s' --container-id c1`},
		"no namespace": {chain.Entry{ContainerID: "c1", IfName: "$x"},
			"cni-exec del n --container-id c1 -i '$x'", "cni-exec add n NETNS --container-id c1 -i '$x'"},
	} {
		tt.entry.NetworkName = "n"
		if got := tt.entry.DelCommand(); got != tt.del {
			t.Errorf("%s: got %s, want %s", name, got, tt.del)
		}
		if got := tt.entry.AddCommand(); got != tt.add {
			t.Errorf("%s: got %s, want %s", name, got, tt.add)
		}
	}
}

// An operand is the name of the container only if it can mean nothing else.
func TestOperands(t *testing.T) {
	pod := func(id, name string) *chain.Entry {
		return &chain.Entry{NetworkName: "n", ContainerID: id, Args: [][2]string{{"K8S_POD_NAME", name}}}
	}
	list := []*chain.Entry{pod("1", "one"), pod("2", "two"), pod("3", "two"), pod("4", "n"), pod("5", "1"), pod("6", "a b")}
	operand := chain.Operands(list)
	var got []string
	for _, e := range list {
		got = append(got, operand(e))
	}
	if text := strings.Join(got, " "); text != "one 2 3 4 5 6" {
		t.Errorf("got %s", text)
	}
}

// The ID equals the one that cnitool derives from a path.
func TestDerivedID(t *testing.T) {
	// printf /var/run/netns/testing | sha512sum | cut -c 1-20
	if got, want := chain.DerivedID("/var/run/netns/testing"), "cnitool-77383ca0a0715733ca6f"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
