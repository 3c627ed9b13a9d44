package bridge_test

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/fault"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// A third-party bridge, with an uplink as a port or without ports, keeps its MAC address when it
// becomes a gateway: it does not take that of a container's host-side veth. A bridge whose address
// is not set, as after its last port was deleted, gets a fixed one.
func TestKernelBridgeKeepsItsMAC(t *testing.T) {
	const none = "00:00:00:00:00:00"
	for name, prepare := range map[string]func(t *testing.T, c *rtnl.Conn, br *rtnl.Link){
		"without a port": func(*testing.T, *rtnl.Conn, *rtnl.Link) {},
		"with a port": func(t *testing.T, c *rtnl.Conn, br *rtnl.Link) {
			uplink, _ := net.ParseMAC("fa:ff:ff:ff:ff:ff") // the kernel chooses the lowest one of the ports
			err := c.AddLink(rtnl.LinkSpec{Name: "uplink", MAC: uplink, Master: br.Index, Up: true, Peer: &rtnl.LinkSpec{Name: "wire", Up: true}})
			if err != nil {
				t.Fatal(err)
			}
		},
		"after its last port was deleted": func(t *testing.T, c *rtnl.Conn, br *rtnl.Link) {
			err := c.AddLink(rtnl.LinkSpec{Name: "port", Master: br.Index, Peer: &rtnl.LinkSpec{Name: "wire"}})
			if err == nil {
				err = c.DelLink("port")
			}
			if err != nil {
				t.Fatal(err)
			}
		},
	} {
		for keys, conf := range map[string]string{"": applettest.GatewayConf, `"vlan":5`: strings.Replace(applettest.GatewayConf, `"ipMasq"`, `"vlan":5,"ipMasq"`, 1)} {
			t.Run(name+" "+keys, func(t *testing.T) {
				h := applettest.NewHost(t)
				host := kerneltest.Dial(t, h.NS)
				if keys != "" {
					kerneltest.Need(t, "CONFIG_BRIDGE_VLAN_FILTERING", func() error {
						return host.AddLink(rtnl.LinkSpec{Name: "br9", Kind: rtnl.Bridge{VLANFiltering: true}})
					})
				}
				br, err := host.CreateLink(rtnl.LinkSpec{Name: "br0", Kind: rtnl.Bridge{VLANFiltering: keys != ""}, Up: true})
				if err != nil {
					t.Fatal(err)
				}
				prepare(t, host, br)
				before := kerneltest.Link(t, host, "br0").MAC.String()
				one, two := h.Container("one"), h.Container("two")
				fault.Hook = func(what string) error {
					if now := kerneltest.Link(t, host, "br0").MAC.String(); name == "with a port" && now != before {
						t.Errorf("at %q: the bridge has %s, had %s", what, now, before)
					}
					if strings.HasPrefix(what, "sysctl net/ipv4/ip_forward") {
						return errors.New("made to fail")
					}
					return nil
				}
				defer func() { fault.Hook = nil }()
				code, out := h.Call(spec.Add, "bridge", conf, one)
				if fault.Hook = nil; !strings.Contains(out, "made to fail") {
					t.Errorf("ADD answers %d %s", code, out)
				}
				if now := kerneltest.Link(t, host, "br0").MAC.String(); now != before && before != none {
					t.Errorf("after an ADD that failed: the bridge has %s, had %s", now, before)
				}
				result := h.Must(spec.Add, "bridge", conf, one)
				if before == none {
					before = kerneltest.Link(t, host, "br0").MAC.String()
				}
				for _, p := range []applettest.Container{one, two} {
					if got := kerneltest.Link(t, host, "br0").MAC.String(); got != before || got == kerneltest.Link(t, host, "veth").MAC.String() {
						t.Errorf("after ADD: the bridge has %s, had %s; the host-side veth has %s", got, before, kerneltest.Link(t, host, "veth").MAC)
					}
					if !strings.Contains(result, before) {
						t.Errorf("the result does not have %s: %s", before, result)
					}
					h.Must(spec.Check, "bridge", applettest.Prev(conf, result), p)
					if p == one {
						result = h.Must(spec.Add, "bridge", conf, two)
					}
				}
				h.Must(spec.Del, "bridge", conf, one)
				h.Must(spec.Del, "bridge", conf, two)
				if got := kerneltest.Link(t, host, "br0").MAC.String(); got != before {
					t.Errorf("after DEL: the bridge has %s, had %s", got, before)
				}
			})
		}
	}
}
