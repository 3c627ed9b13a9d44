package ptp_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// ptpStatic returns a ptp network with static, one address, and routes in JSON.
func ptpStatic(address, gateway, routes string) string {
	return applettest.Conf("ptp", `"ipam":{"type":"static","addresses":[{"address":"`+address+`","gateway":"`+gateway+`"}],"routes":[`+routes+`]}`)
}

// Addresses and routes that the kernel refuses are a configuration error, and ADD leaves nothing.
func TestKernelPtpRefusedAddresses(t *testing.T) {
	h := applettest.NewHost(t)
	for name, tt := range map[string]struct{ conf, want string }{
		"gateway anything":   {ptpStatic("10.1.0.5/24", "0.0.0.0", ""), "an address of another host"},
		"gateway loopback":   {ptpStatic("10.1.0.5/24", "127.0.0.1", ""), "an address of another host"},
		"gateway multicast":  {ptpStatic("fd00::5/64", "ff02::1", ""), "an address of another host"},
		"gateway everywhere": {ptpStatic("10.1.0.5/24", "255.255.255.255", ""), "an address of another host"},
		"scope":              {ptpStatic("10.1.0.5/24", "10.1.0.1", `{"dst":"10.3.0.0/24","scope":300}`), "scope: 300 is not a scope of a route"},
		"out of reach":       {ptpStatic("10.1.0.5/24", "10.1.0.1", `{"dst":"10.3.0.0/24","gw":"127.0.0.5"}`), "gateway 127.0.0.5 of the route"},
		"IPv6 out of reach":  {ptpStatic("fd00:1::5/64", "fd00:1::1", `{"dst":"fd00:3::/64","gw":"fd00:9::1"}`), "gateway fd00:9::1 of the route"},
		"another family":     {ptpStatic("10.1.0.5/24", "10.1.0.1", `{"dst":"10.3.0.0/24","gw":"fd00::1"}`), "gateway fd00::1 is of another family"},
		"MTU":                {strings.Replace(ptpStatic("fd00:1::5/64", "fd00:1::1", ""), `"ipam"`, `"mtu":576,"ipam"`, 1), "MTU 576 of eth0 is too small for IPv6, which needs 1280"},
	} {
		t.Run(name, func(t *testing.T) { h.Refuse(7, tt.want, spec.Add, "ptp", tt.conf, h.Container("a")) })
	}
}

// A route of the result to the gateway itself gets scope link, in any position, and is added before
// routes through the gateway.
func TestKernelPtpGatewayRoute(t *testing.T) {
	for _, address := range []string{"10.1.0.5/24", "10.1.0.5/32"} {
		for _, gateway := range []string{"10.1.0.1", "169.254.1.1"} {
			for _, routes := range []string{
				`{"dst":"GW/32","scope":253},{"dst":"0.0.0.0/0"}`, `{"dst":"GW/32"},{"dst":"0.0.0.0/0"}`,
				`{"dst":"0.0.0.0/0"},{"dst":"GW/32","scope":253}`, `{"dst":"0.0.0.0/0"},{"dst":"GW/32"}`,
			} {
				h := applettest.NewHost(t)
				p := h.Container("a")
				conf := ptpStatic(address, gateway, strings.ReplaceAll(routes, "GW", gateway))
				res := h.Must(spec.Add, "ptp", conf, p)
				h.Must(spec.Check, "ptp", applettest.Prev(conf, res), p)
				if got := routesOf(t, p.NS); !slices.Contains(got, gateway+"/32 dev eth scope 253 src 10.1.0.5") || !slices.Contains(got, "0.0.0.0/0 via "+gateway+" dev eth scope 0") {
					t.Errorf("%s with %s: got\n%s", address, routes, strings.Join(got, "\n"))
				}
			}
		}
	}
}

// CHECK finds the route to the gateway in any table, since sbr moves it.
func TestKernelPtpCheckAfterSBR(t *testing.T) {
	h := applettest.NewHost(t)
	p := h.Container("a")
	conf := ptpStatic("10.1.0.5/24", "10.1.0.1", `{"dst":"0.0.0.0/0"}`)
	sbr := `{"cniVersion":"1.1.0","name":"demo","type":"sbr","dataDir":"$DIR/sbr"}`
	res := h.Must(spec.Add, "sbr", applettest.Prev(sbr, h.Must(spec.Add, "ptp", conf, p)), p)
	if len(routesOf(t, p.NS)) != 0 {
		t.Fatalf("sbr left %q in the main table", routesOf(t, p.NS))
	}
	h.Must(spec.Check, "ptp", applettest.Prev(conf, res), p)
}

// The error names the owner: of the address that another container has, and of the host-side veth
// that the attachment has in another namespace.
func TestKernelPtpAddressInUse(t *testing.T) {
	h := applettest.NewHost(t)
	conf := ptpStatic("10.1.0.5/32", "10.1.0.1", "")
	h.Must(spec.Add, "ptp", conf, h.Container("a"))
	h.Refuse(100, "an address is another container's", spec.Add, "ptp", conf, h.Container("b"))
	h.Refuse(100, "demo/a/eth0 is attached to another namespace: its host-side veth veth", spec.Add, "ptp", conf, h.Container("a"))
}

// A pair without a label is deleted if the reference may have made it: the links are peers of each
// other, in these two namespaces, with a name as in the reference.
func TestKernelPtpDelOfUnlabelledPair(t *testing.T) {
	for name, tt := range map[string]struct {
		hostEnd string
		third   bool // the peer is in a third namespace
		want    int  // links of the host after DEL, without lo
	}{
		"the reference's":              {"veth01ab23cd", false, 0},
		"a user's":                     {"dk0", false, 1},
		"Docker's":                     {"veth01ab23c", false, 1},
		"a coincidence of indexes":     {"veth01ab23cd", true, 1},
		"a coincidence, a user's name": {"hx", true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			h := applettest.NewHost(t)
			p, q, third := h.Container("b"), h.Container("a"), h.Container("c")
			host := kerneltest.Dial(t, h.NS)
			peer := q.NS
			if !tt.third {
				peer = p.NS
			}
			pair := rtnl.LinkSpec{Name: tt.hostEnd, Index: 50, Peer: &rtnl.LinkSpec{Name: "eth0", Index: 60, NS: peer}}
			if err := host.AddLink(pair); err != nil {
				t.Fatal(err)
			}
			if pair.Name, pair.Peer.NS = "px", p.NS; tt.third {
				if err := kerneltest.Dial(t, third.NS).AddLink(pair); err != nil {
					t.Fatal(err)
				}
			}
			if tt.want > 0 {
				h.Refuse(100, "already exists", spec.Add, "ptp", applettest.PtpConf, p)
				h.Refuse(3, "is known", spec.Get, "ptp", strings.Replace(applettest.PtpConf, `"1.1.0"`, `"0.4.0"`, 1), p)
			}
			h.Must(spec.Del, "ptp", applettest.PtpConf, p)
			if left := kerneltest.Links(t, h.NS); len(left) != 1+tt.want {
				t.Errorf("left on the host: %+v", left)
			}
		})
	}
}
