package e2e

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/nfttest"
	"github.com/cnibox/cnibox/spec"
)

// recordedLists are the plugins whose rules are in the recorded state, in the order of DEL.
var recordedLists = map[string]string{
	"portmap": `{"cniVersion":"1.0.0","name":"demo","type":"portmap","dataDir":"$DIR/ports"}`,
	"bridge": `{"cniVersion":"1.0.0","name":"demo","type":"bridge","bridge":"br0","ipMasq":true,"macspoofchk":true,
	 "ipam":{"type":"host-local","subnet":"10.1.0.0/24","dataDir":"$DIR/leases"}}`,
}

// DEL releases the rules of nftables backends and the lease that the reference has left. Nothing of
// the container is left and nothing of its neighbour is deleted, with or without the namespace and a
// result.
func TestKernelTwinRecorded(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	rules, err := os.ReadFile("../twin/testdata/release-1.9.nft")
	if err != nil {
		t.Fatal(err)
	}
	result := `"prevResult":{"cniVersion":"1.0.0","interfaces":[{"name":"br0"},{"name":"veth1"},{"name":"eth0","sandbox":"/run/netns/x"}],
	 "ips":[{"interface":2,"address":"10.1.0.2/24","gateway":"10.1.0.1"}]}`
	for name, prev := range map[string]string{"with a result": result, "with nothing": `"x":1`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.must("nft", w.run(string(rules), nil, "nft", "-f", "-"))
			w.write("leases/demo/10.1.0.2", "ctr1\r\neth0")
			w.write("leases/demo/10.1.0.3", "ctr2\r\neth0")
			gone := applettest.Container{ID: "ctr1"}
			for _, plugin := range []string{"portmap", "bridge"} {
				w.must("DEL "+plugin, w.plugin(spec.Del, plugin, withMember(recordedLists[plugin], prev), gone))
			}
			text := nfttest.Ruleset(t, w.NS) + w.Stored()
			for _, trace := range []string{"ctr1", "10.1.0.2", "dport 8080", "dport 5353", "26c669cd0814ac40-7883a6f9ce71eedb", "table inet cnibox"} {
				if strings.Contains(text, trace) {
					t.Errorf("%q is left in\n%s", trace, text)
				}
			}
			for _, other := range []string{"26c669cd0814ac40-a09553539d4cc24c", "8081", "cni-br-iface-ctr2-eth0", "leases/demo/10.1.0.3"} {
				if !strings.Contains(text, other) {
					t.Errorf("%q is gone from\n%s", other, text)
				}
			}
		})
	}
}
