package bridge_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// The result has the MTU of each interface after ADD: the MTU of a third-party bridge changes with
// its ports.
func TestKernelBridgeReportsMTU(t *testing.T) {
	const env = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.7.1/24\nFLANNEL_MTU=1400\nFLANNEL_IPMASQ=false\n"
	for name, tt := range map[string]struct{ plugin, keys string }{
		"bridge":               {"bridge", `"bridge":"br0","mtu":1400`},
		"bridge, jumbo frames": {"bridge", `"bridge":"br0","mtu":9000`},
		"bridge, gateway":      {"bridge", `"bridge":"br0","mtu":1400,"isGateway":true,"ipam":{"type":"host-local","dataDir":"$DIR","subnet":"10.1.0.0/24"}`},
		"bridge, no interface": {"bridge", `"bridge":"br0","mtu":1400,"disableContainerInterface":true`},
		"flannel":              {"flannel", `"subnetFile":"$DIR/subnet.env","dataDir":"$DIR/flannel","ipam":{"dataDir":"$DIR"},"delegate":{"bridge":"br0"}`},
	} {
		t.Run(name, func(t *testing.T) {
			h := applettest.NewHost(t)
			if err := os.WriteFile(filepath.Join(h.Dir, "subnet.env"), []byte(env), 0o600); err != nil {
				t.Fatal(err)
			}
			host := kerneltest.Dial(t, h.NS)
			if err := host.AddLink(rtnl.LinkSpec{Name: "br0", Kind: rtnl.Bridge{}, Up: true}); err != nil {
				t.Fatal(err)
			}
			p := h.Container("ctr")
			var result spec.Result
			out := h.Must(spec.Add, tt.plugin, `{"cniVersion":"1.1.0","name":"demo","type":"`+tt.plugin+`",`+tt.keys+`}`, p)
			if err := json.Unmarshal([]byte(out), &result); err != nil || len(result.Interfaces) != 3 {
				t.Fatalf("%v: %s", err, out)
			}
			for _, i := range result.Interfaces {
				c := host
				if i.Sandbox != "" {
					c = kerneltest.Dial(t, p.NS)
				}
				if live := kerneltest.Link(t, c, i.Name); i.MTU != live.MTU || i.MAC != live.MAC.String() {
					t.Errorf("%s: reported MTU %d and address %s, is %d and %s", i.Name, i.MTU, i.MAC, live.MTU, live.MAC)
				}
			}
		})
	}
}
