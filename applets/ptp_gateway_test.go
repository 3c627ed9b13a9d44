//go:build !no_ptp

package applets_test

import (
	"slices"
	"strings"
	"testing"

	"cnibox/internal/kerneltest"
	"cnibox/rtnl"
	"cnibox/spec"
)

// ptpStatic is a pair with one address and the routes given, all of them in JSON.
func ptpStatic(address, gateway, routes string) string {
	return ptpOf(`"ipam":{"type":"static","addresses":[{"address":"` + address + `","gateway":"` + gateway + `"}],"routes":[` + routes + `]}`)
}

// What the address plugin gives and the kernel cannot do is told as a fault of the
// configuration, and nothing is left behind.
func TestKernelPtpImpossible(t *testing.T) {
	n := newNode(t)
	for name, tt := range map[string]struct{ conf, want string }{
		"gateway anything":   {ptpStatic("10.1.0.5/24", "0.0.0.0", ""), "an address of another host"},
		"gateway loopback":   {ptpStatic("10.1.0.5/24", "127.0.0.1", ""), "an address of another host"},
		"gateway multicast":  {ptpStatic("fd00::5/64", "ff02::1", ""), "an address of another host"},
		"gateway everywhere": {ptpStatic("10.1.0.5/24", "255.255.255.255", ""), "an address of another host"},
		"scope":              {ptpStatic("10.1.0.5/24", "10.1.0.1", `{"dst":"10.3.0.0/24","scope":300}`), "scope: 300 is no scope of a route"},
		"out of reach":       {ptpStatic("10.1.0.5/24", "10.1.0.1", `{"dst":"10.3.0.0/24","gw":"127.0.0.5"}`), `route append 10.3.0.0/24 via 127.0.0.5: `},
		"IPv6 out of reach":  {ptpStatic("fd00:1::5/64", "fd00:1::1", `{"dst":"fd00:3::/64","gw":"fd00:9::1"}`), `the gateway of a route has to be another host`},
		"another family":     {ptpStatic("10.1.0.5/24", "10.1.0.1", `{"dst":"10.3.0.0/24","gw":"fd00::1"}`), "gateway fd00::1 is of another family"},
		"MTU":                {strings.Replace(ptpStatic("fd00:1::5/64", "fd00:1::1", ""), `"ipam"`, `"mtu":576,"ipam"`, 1), "MTU 576 of eth0 is too small for IPv6, which needs 1280"},
	} {
		t.Run(name, func(t *testing.T) { n.refuse(7, tt.want, spec.Add, "ptp", tt.conf, n.pod("a")) })
	}
}

// A route of the result to the gateway itself is one to the link, wherever it stands, and
// the gateway is reached before what is behind it.
func TestKernelPtpGatewayRoute(t *testing.T) {
	for _, address := range []string{"10.1.0.5/24", "10.1.0.5/32"} {
		for _, gateway := range []string{"10.1.0.1", "169.254.1.1"} {
			for _, routes := range []string{
				`{"dst":"GW/32","scope":253},{"dst":"0.0.0.0/0"}`, `{"dst":"GW/32"},{"dst":"0.0.0.0/0"}`,
				`{"dst":"0.0.0.0/0"},{"dst":"GW/32","scope":253}`, `{"dst":"0.0.0.0/0"},{"dst":"GW/32"}`,
			} {
				n := newNode(t)
				p := n.pod("a")
				conf := ptpStatic(address, gateway, strings.ReplaceAll(routes, "GW", gateway))
				res := n.must(spec.Add, "ptp", conf, p)
				n.must(spec.Check, "ptp", prev(conf, res), p)
				if got := routesOf(t, p.ns); !slices.Contains(got, gateway+"/32 dev eth scope 253 src 10.1.0.5") || !slices.Contains(got, "0.0.0.0/0 via "+gateway+" dev eth scope 0") {
					t.Errorf("%s with %s: got\n%s", address, routes, strings.Join(got, "\n"))
				}
			}
		}
	}
}

// CHECK looks for the route to the gateway in all tables: sbr moves it to another.
func TestKernelPtpMovedRoutes(t *testing.T) {
	n := newNode(t)
	p := n.pod("a")
	conf := ptpStatic("10.1.0.5/24", "10.1.0.1", `{"dst":"0.0.0.0/0"}`)
	sbr := `{"cniVersion":"1.1.0","name":"demo","type":"sbr","dataDir":"$DIR/sbr"}`
	res := n.must(spec.Add, "sbr", prev(sbr, n.must(spec.Add, "ptp", conf, p)), p)
	if len(routesOf(t, p.ns)) != 0 {
		t.Fatalf("sbr left %q in the main table", routesOf(t, p.ns))
	}
	n.must(spec.Check, "ptp", prev(conf, res), p)
}

// Whose what is taken is: an address of another container, and a host end of this very
// attachment in another namespace.
func TestKernelPtpTaken(t *testing.T) {
	n := newNode(t)
	conf := ptpStatic("10.1.0.5/32", "10.1.0.1", "")
	n.must(spec.Add, "ptp", conf, n.pod("a"))
	n.refuse(100, "an address is another container's", spec.Add, "ptp", conf, n.pod("b"))
	n.refuse(100, "demo/a/eth0 is attached to another namespace: its host-side veth veth", spec.Add, "ptp", conf, n.pod("a"))
}

// Without a label on its host end a pair is the attachment's if it looks like one of the
// reference: its ends are peers of each other, in these two namespaces, and the name is
// one that the reference gives.
func TestKernelPtpForeignPeer(t *testing.T) {
	for name, tt := range map[string]struct {
		hostEnd string
		third   bool // whether the container's peer is in a third namespace
		want    int  // links besides lo on the host after DEL
	}{
		"the reference's":              {"veth01ab23cd", false, 0},
		"a user's":                     {"dk0", false, 1},
		"Docker's":                     {"veth01ab23c", false, 1},
		"a coincidence of indexes":     {"veth01ab23cd", true, 1},
		"a coincidence, a user's name": {"hx", true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			p, q, third := n.pod("b"), n.pod("a"), n.pod("c")
			host := kerneltest.Dial(t, n.host)
			peer := q.ns
			if !tt.third {
				peer = p.ns
			}
			pair := rtnl.LinkSpec{Name: tt.hostEnd, Index: 50, Peer: &rtnl.LinkSpec{Name: "eth0", Index: 60, NS: peer}}
			if err := host.AddLink(pair); err != nil {
				t.Fatal(err)
			}
			if pair.Name, pair.Peer.NS = "px", p.ns; tt.third {
				if err := kerneltest.Dial(t, third.ns).AddLink(pair); err != nil {
					t.Fatal(err)
				}
			}
			if tt.want > 0 {
				n.refuse(100, "already exists", spec.Add, "ptp", ptpConf, p)
				n.refuse(3, "is known", spec.Get, "ptp", strings.Replace(ptpConf, `"1.1.0"`, `"0.4.0"`, 1), p)
			}
			n.must(spec.Del, "ptp", ptpConf, p)
			if left := links(t, n.host); len(left) != 1+tt.want {
				t.Errorf("left on the host: %+v", left)
			}
		})
	}
}
