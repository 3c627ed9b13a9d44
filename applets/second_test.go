package applets_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// sbr on the second network of a container: its table has that network's default routes, which come from "routes" of
// its IPAM plugin, and the main table has the first network's alone.
func TestKernelSBROnSecondNetwork(t *testing.T) {
	h := applettest.NewHost(t)
	c := h.Container("a")
	first := applettest.Conf("bridge", `"bridge":"br1","isGateway":true,"ipam":{"type":"host-local","dataDir":"$DIR",
		"ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd01::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}`)
	second := strings.Replace(applettest.Conf("bridge", `"bridge":"br2","ipam":{"type":"static","addresses":[{"address":"10.7.0.5/24"},{"address":"fd07::5/64"}],
		"routes":[{"dst":"0.0.0.0/0","gw":"10.7.0.1"},{"dst":"::/0","gw":"fd07::1"}]}`), "demo", "other", 1)
	sbr := strings.Replace(applettest.Conf("sbr", `"dataDir":"$DIR/sbr"`), "demo", "other", 1)
	const ifName = "CNI_IFNAME=net1"
	h.Must(spec.Add, "bridge", first, c)
	res := h.Must(spec.Add, "bridge", second, c, ifName)
	res = h.Must(spec.Add, "sbr", applettest.Prev(sbr, res), c, ifName)
	for table, want := range map[int][]string{100: {"10.7.0.1"}, 101: {"fd07::1"}, 254: {"10.1.0.1", "fd01::1"}} {
		var got []string
		for _, dst := range []string{"0.0.0.0/0", "::/0"} {
			routes, err := kerneltest.Dial(t, c.NS).Routes(rtnl.RouteFilter{Table: table, Dst: netip.MustParsePrefix(dst)})
			h.NoError(err)
			for _, r := range routes {
				got = append(got, r.GW.String())
			}
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("table %d has default routes by %q, want %q", table, got, want)
		}
	}
	h.Must(spec.Check, "bridge", applettest.Prev(second, res), c, ifName)
	h.Must(spec.Check, "sbr", applettest.Prev(sbr, res), c, ifName)
}

// With conf/default/forwarding of 0 the link that routes for the container still forwards, and CHECK
// knows its setting.
func TestKernelForwardingOfLink(t *testing.T) {
	for _, conf := range []string{applettest.GatewayConf, applettest.PtpConf} {
		h := applettest.NewHost(t)
		for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
			h.NoError(h.NS.SetSysctl(key, "1"))
		}
		for _, key := range []string{"net/ipv4/conf/default/forwarding", "net/ipv6/conf/default/forwarding"} {
			h.NoError(h.NS.SetSysctl(key, "0"))
		}
		c := h.Container("a")
		res := h.Must(spec.Add, typeOf(conf), conf, c)
		link := "br0"
		if typeOf(conf) == "ptp" {
			link = kerneltest.Links(t, h.NS)[1].Name
		}
		h.Must(spec.Check, typeOf(conf), applettest.Prev(conf, res), c)
		for _, family := range []string{"ipv4", "ipv6"} {
			key := "net/" + family + "/conf/" + link + "/forwarding"
			if got, err := h.NS.Sysctl(key); err != nil || got != "1" {
				t.Errorf("%s is %q, %v", key, got, err)
			}
			h.NoError(h.NS.SetSysctl(key, "0"))
			if code, out := h.Call(spec.Check, typeOf(conf), applettest.Prev(conf, res), c); code != spec.CodeCheck || !strings.Contains(out, key+" is 0") {
				t.Errorf("CHECK with %s=0: %d %s", key, code, out)
			}
			h.NoError(h.NS.SetSysctl(key, "1"))
		}
	}
}

// tuning with another MAC address behind macspoofchk: the guard has the new address, and after its DEL the former one.
// CHECK reports an address that the guard does not let pass.
func TestKernelTuningMovesMACGuard(t *testing.T) {
	h := applettest.NewHost(t)
	c := h.Container("a")
	conf := applettest.Conf("bridge", `"bridge":"br0","isGateway":true,"macspoofchk":true,`+applettest.IPAM)
	tuning := applettest.Conf("tuning", `"dataDir":"$DIR/tuning","mac":"02:00:00:00:00:77"`)
	res := h.Must(spec.Add, "bridge", conf, c)
	conn := kerneltest.Dial(t, c.NS)
	former := kerneltest.Link(t, conn, "eth0").MAC
	after := h.Must(spec.Add, "tuning", applettest.Prev(tuning, res), c)
	h.Must(spec.Check, "bridge", applettest.Prev(conf, after), c)
	h.Listen(c.NS, "a")
	if who := h.Who(h.NS, "10.1.0.2", applettest.Timeout); who != "a" {
		t.Errorf("%q answers", who)
	}
	h.Must(spec.Del, "tuning", applettest.Prev(tuning, after), c)
	h.Must(spec.Check, "bridge", applettest.Prev(conf, res), c)
	other := append([]byte(nil), former...)
	other[5] ^= 1
	h.NoError(conn.SetLink(kerneltest.Link(t, conn, "eth0").Index, rtnl.LinkChange{MAC: other}))
	moved := strings.Replace(res, former.String(), kerneltest.Link(t, conn, "eth0").MAC.String(), 1)
	if code, out := h.Call(spec.Check, "bridge", applettest.Prev(conf, moved), c); code != spec.CodeCheck || !strings.Contains(out, "macspoofchk") {
		t.Errorf("CHECK answers %d %s", code, out)
	}
}
