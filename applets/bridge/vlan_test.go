package bridge_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// A port gets its VLANs: an untagged one, tagged ranges and single ones, with or without the
// default VLAN of the bridge.
func TestKernelBridgeVLAN(t *testing.T) {
	kerneltest.Need(t, "CONFIG_BRIDGE_VLAN_FILTERING", func() error {
		return kerneltest.Dial(t, kerneltest.NS(t)).AddLink(rtnl.LinkSpec{Name: "br9", Kind: rtnl.Bridge{VLANFiltering: true}})
	})
	for name, tt := range map[string]struct{ keys, want string }{
		"untagged":           {`"vlan":100`, "100 pvid"},
		"default kept":       {`"vlan":100,"preserveDefaultVlan":true`, "1, 100 pvid"},
		"trunk alone":        {`"vlanTrunk":[{"minID":200,"maxID":202},{"id":300}]`, "1 pvid, 200, 201, 202, 300"},
		"trunk and untagged": {`"vlan":100,"vlanTrunk":[{"minID":99,"maxID":101},{"id":99}]`, "99, 100 pvid, 101"},
	} {
		t.Run(name, func(t *testing.T) {
			h := applettest.NewHost(t)
			p := h.Container("ctr")
			conf := `{"cniVersion":"1.1.0","name":"demo","type":"bridge","bridge":"br0",` + tt.keys + `}`
			result := h.Must(spec.Add, "bridge", conf, p)
			h.Must(spec.Check, "bridge", applettest.Prev(conf, result), p)
			host := kerneltest.Dial(t, h.NS)
			port := kerneltest.Link(t, host, "veth")
			if got := vlans(t, host, port.Index); got != tt.want {
				t.Errorf("the port has VLANs %s, want %s", got, tt.want)
			}
			br := kerneltest.Link(t, host, "br0")
			if !br.VLANFiltering {
				t.Error("the bridge does not keep the VLANs apart")
			}
			for _, filter := range []bool{false, true} {
				if err := host.SetLink(br.Index, rtnl.LinkChange{VLANFiltering: &filter}); err != nil {
					t.Fatal(err)
				}
				if code, _ := h.Call(spec.Check, "bridge", applettest.Prev(conf, result), p); (code == 0) != filter {
					t.Errorf("CHECK with filtering %t answers %d", filter, code)
				}
			}
			all := []rtnl.VLANRange{{From: 1, To: 4094}}
			if err := host.Do(rtnl.DropPortVLANs(port.Index, all)); err != nil {
				t.Fatal(err)
			}
			if code, out := h.Call(spec.Check, "bridge", applettest.Prev(conf, result), p); code != spec.CodeCheck || !strings.Contains(out, "VLAN") {
				t.Errorf("CHECK of a port without its VLANs answers %d %s", code, out)
			}
			h.Must(spec.Del, "bridge", conf, p)
		})
	}
}

// vlans formats the VLANs of a port.
func vlans(t *testing.T, c *rtnl.Conn, index uint32) string {
	t.Helper()
	ranges, err := c.PortVLANs(index)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(ranges, func(a, b rtnl.VLANRange) int { return a.From - b.From })
	var out []string
	for _, r := range ranges {
		for id := r.From; id <= r.To; id++ {
			text := fmt.Sprint(id)
			if r.PVID {
				text += " pvid"
			}
			out = append(out, text)
		}
	}
	return strings.Join(out, ", ")
}

// The gateway is on an interface of its own in the port's VLAN, which later containers share.
func TestKernelBridgeVLANGateway(t *testing.T) {
	kerneltest.Need(t, "CONFIG_BRIDGE_VLAN_FILTERING", func() error {
		return kerneltest.Dial(t, kerneltest.NS(t)).AddLink(rtnl.LinkSpec{Name: "br9", Kind: rtnl.Bridge{VLANFiltering: true}})
	})
	h := applettest.NewHost(t)
	conf := strings.Replace(applettest.GatewayConf, `"ipMasq":true`, `"ipMasq":true,"vlan":100`, 1)
	one, two := h.Container("one"), h.Container("two")
	result := h.Must(spec.Add, "bridge", conf, one)
	if !strings.Contains(result, `"name": "br0.100"`) {
		t.Errorf("the result does not name the VLAN's gateway: %s", result)
	}
	h.Must(spec.Check, "bridge", applettest.Prev(conf, result), one)
	h.Must(spec.Add, "bridge", conf, two)
	h.Listen(two.NS, two.ID)
	for _, from := range []*netns.NS{one.NS, h.NS} {
		if who := h.Who(from, "10.1.0.3", applettest.Timeout); who != "two" {
			t.Errorf("%q answers for the second container", who)
		}
	}
	h.Must(spec.Del, "bridge", conf, one)
	h.Must(spec.Del, "bridge", conf, two)
}
