package spec

import (
	"strings"
	"testing"
)

// A label belongs to exactly one network, even if it is truncated.
func TestLabelOfOneNetwork(t *testing.T) {
	long := strings.Repeat("n", 190)
	names := []string{"net42889", "net14758", "net1", "net1.1", "n", long, long[:180], long + "-8493", long + "-38363"}
	for _, max := range []int{91, 127, 255} {
		for _, network := range names {
			label := Attachment{Network: network, ContainerID: strings.Repeat("c", 255), IfName: "eth0"}.Label(max)
			if len(label) != max {
				t.Errorf("%d bytes of %d: %s", len(label), max, label)
			}
			for _, other := range names {
				if got := LabelOf(label, other); got != (other == network) {
					t.Errorf("label %q is of %s: %t", label, other, got)
				}
			}
		}
	}
	key := Attachment{Network: "net1", ContainerID: "c1", IfName: "eth0"}.Key()
	for _, label := range []string{"", "uplink", key, key + " ", key + " net1", "net1/c1/eth0", " net1/c1/eth0", key + "net1/c1/eth0"} {
		if LabelOf(label, "net1") || LabelOf(label, "") {
			t.Errorf("%q is taken for a label", label)
		}
	}
}

// LabelNames returns the names of a label that was not truncated.
func TestLabelNames(t *testing.T) {
	a := Attachment{Network: "net1", ContainerID: "c1", IfName: "eth0"}
	if got, ok := LabelNames(a.Label(255)); !ok || got != a {
		t.Errorf("got %v, %t", got, ok)
	}
	long := Attachment{Network: "net1", ContainerID: strings.Repeat("c", 255), IfName: "eth0"}
	for _, label := range []string{"", "uplink", a.Key(), a.Key() + " net2/c1/eth0", long.Label(127)} {
		if got, ok := LabelNames(label); ok {
			t.Errorf("%q has the names %v", label, got)
		}
	}
}

// With other keys, a new version would not find what an earlier one has created.
func TestKeyNeverChanges(t *testing.T) {
	a := Attachment{Network: "net1", ContainerID: "c1", IfName: "eth0"}
	if got, want := a.Key(), "8e48f37d294f9e4a4bb08eb2"; got != want {
		t.Errorf("key %s, want %s", got, want)
	}
	if got, want := NetworkKey("net1"), "8e48f37d"; got != want {
		t.Errorf("network key %s, want %s", got, want)
	}
}
