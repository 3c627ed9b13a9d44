package ptp_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// routesOf lists the routes of the main table as ip-route(8) does, without those that the kernel
// added.
func routesOf(t *testing.T, ns *netns.NS) (out []string) {
	t.Helper()
	c := kerneltest.Dial(t, ns)
	routes, err := c.Routes(rtnl.RouteFilter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		if r.Protocol == 2 { // RTPROT_KERNEL
			continue
		}
		l, err := c.LinkAt(r.Link)
		if err != nil {
			t.Fatal(err)
		}
		line := r.Dst.String()
		if r.GW.IsValid() {
			line += " via " + r.GW.String()
		}
		line += " dev " + strings.TrimRight(l.Name, "0123456789abcdef")
		if r.Dst.Addr().Is4() {
			line += fmt.Sprintf(" scope %d", *r.Scope)
		}
		if r.Src.IsValid() {
			line += " src " + r.Src.String()
		}
		out = append(out, line)
	}
	slices.Sort(out)
	return out
}

// The routes are the reference's: in the container, neighbours are reached through the gateway as
// well, and the host has a route to each address.
func TestKernelPtpRoutes(t *testing.T) {
	h := applettest.NewHost(t)
	p := h.Container("a")
	endlessDAD(t, h.NS, p.NS)
	res := h.Must(spec.Add, "ptp", applettest.PtpConf, p)
	for ns, want := range map[*netns.NS][2]string{h.NS: {"veth", "fd00:1::1/"}, p.NS: {"eth0", "fd00:1::2/"}} {
		c := kerneltest.Dial(t, ns)
		if addr := kerneltest.Addr(t, c, kerneltest.Link(t, c, want[0]).Index, want[1]); addr.Tentative || !addr.NoDAD {
			t.Errorf("got %+v, want no duplicate detection", addr)
		}
	}
	want := []string{
		"0.0.0.0/0 via 10.1.0.1 dev eth scope 0",
		"10.1.0.0/24 via 10.1.0.1 dev eth scope 0 src 10.1.0.2",
		"10.1.0.1/32 dev eth scope 253 src 10.1.0.2",
		"::/0 via fd00:1::1 dev eth",
		"fd00:1::/64 via fd00:1::1 dev eth src fd00:1::2",
		"fd00:1::1/128 dev eth src fd00:1::2",
	}
	if got := routesOf(t, p.NS); !slices.Equal(got, want) {
		t.Errorf("container: got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got := routesOf(t, h.NS); !slices.Equal(got, []string{"10.1.0.2/32 dev veth scope 254", "fd00:1::2/128 dev veth"}) {
		t.Errorf("host: got\n%s", strings.Join(got, "\n"))
	}
	if strings.Index(res, `"name": "veth`) > strings.Index(res, `"name": "eth0"`) || !strings.Contains(res, `"interface": 1`) {
		t.Errorf("the host-side veth comes first, and the addresses are the peer's: %s", res)
	}
	h.Must(spec.Check, "ptp", applettest.Prev(applettest.PtpConf, res), p)
}

// endlessDAD makes duplicate address detection on new links of these namespaces last longer than
// any test: it starts within a day and sends 255 solicitations.
func endlessDAD(t *testing.T, namespaces ...*netns.NS) {
	t.Helper()
	for _, ns := range namespaces {
		applettest.SetDAD(t, ns, "86400", "255")
	}
}

// Two containers and the gateway reach each other in both families.
func TestKernelPtpTraffic(t *testing.T) {
	h := applettest.NewHost(t)
	a, b := h.Container("a"), h.Container("b")
	endlessDAD(t, h.NS, a.NS, b.NS)
	h.Must(spec.Add, "ptp", applettest.PtpConf, a)
	h.Must(spec.Add, "ptp", applettest.PtpConf, b)
	h.Listen(b.NS, b.ID)
	h.Listen(h.NS, "host")
	for _, l := range kerneltest.Links(t, h.NS) {
		if l.Name != "lo" {
			kerneltest.LinkLocal(t, h.NS, l.Name)
		}
	}
	for addr, want := range map[string]string{"10.1.0.3": "b", "fd00:1::3": "b", "10.1.0.1": "host", "fd00:1::1": "host"} {
		if who := h.Who(a.NS, addr, applettest.Timeout); who != want {
			t.Errorf("%s is answered by %q, want %q", addr, who, want)
		}
	}
}

// Two addresses in one subnet, two gateways, and a gateway outside of the subnet work; in the
// reference they do not.
func TestKernelPtpAddresses(t *testing.T) {
	for name, tt := range map[string]struct {
		ranges string
		want   []string // routes on the host
	}{
		"two addresses of one subnet and one gateway": {
			`[{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.10","rangeEnd":"10.1.0.19"}],
			 [{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.20","rangeEnd":"10.1.0.29"}],
			 [{"subnet":"fd00:1::/64","rangeStart":"fd00:1::10","rangeEnd":"fd00:1::1f"}],
			 [{"subnet":"fd00:1::/64","rangeStart":"fd00:1::20","rangeEnd":"fd00:1::2f"}]`,
			[]string{"10.1.0.10", "10.1.0.20", "fd00:1::10", "fd00:1::20"},
		},
		"two gateways": {
			`[{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.10","rangeEnd":"10.1.0.19","gateway":"10.1.0.1"}],
			 [{"subnet":"10.2.0.0/24","gateway":"10.2.0.254"}]`,
			[]string{"10.1.0.10", "10.2.0.1"},
		},
		"a gateway of another network": {
			`[{"subnet":"10.1.0.0/24","gateway":"169.254.1.1"}]`, []string{"10.1.0.1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := applettest.NewHost(t)
			p := h.Container("a")
			conf := applettest.Conf("ptp", `"ipam":{"type":"host-local","dataDir":"$DIR","ranges":[`+tt.ranges+`],"routes":[{"dst":"0.0.0.0/0"}]}`)
			res := h.Must(spec.Add, "ptp", conf, p)
			h.Must(spec.Check, "ptp", applettest.Prev(conf, res), p)
			h.Listen(p.NS, p.ID)
			for _, addr := range tt.want {
				if who := h.Who(h.NS, addr, applettest.Timeout); who != "a" {
					t.Errorf("%s is answered by %q", addr, who)
				}
			}
			before := h.Snapshot(p)
			h.Must(spec.Check, "ptp", applettest.Prev(conf, res), p)
			if after := h.Snapshot(p); after != before {
				t.Errorf("CHECK changed\n%s", kerneltest.Diff(before, after))
			}
		})
	}
}

// Invalid configurations are refused before anything is made, or leave nothing.
func TestKernelPtpInvalidConf(t *testing.T) {
	h := applettest.NewHost(t)
	p := h.Container("a")
	before := h.Snapshot(p)
	for name, tt := range map[string]struct{ keys, want string }{
		"no ipam":  {`"mtu":1400`, "plugin name"},
		"mtu":      {`"mtu":12,"ipam":{"type":"host-local"}`, "is not within 68 to 65535"},
		"backend":  {`"ipMasqBackend":"ipfw","ipam":{"type":"host-local"}`, "unknown ipmasq backend"},
		"mac":      {`"runtimeConfig":{"mac":"01:00:5e:00:00:01"},"ipam":{"type":"host-local","dataDir":"$DIR","subnet":"10.1.0.0/24"}`, "mac"},
		"mtu type": {`"mtu":"1400","ipam":{"type":"host-local"}`, "mtu"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out := h.Call(spec.Add, "ptp", applettest.Conf("ptp", tt.keys), p)
			if code != spec.CodeConfig || !strings.Contains(strings.ToLower(out), tt.want) {
				t.Errorf("got %d %s, want code 7 with %q", code, out, tt.want)
			}
		})
	}
	if after := h.Snapshot(p); after != before {
		t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
	}
}

// CHECK reports what is missing on the host and in the container; the reference checks neither.
func TestKernelPtpCheck(t *testing.T) {
	hostEnd := func(h *applettest.Host) (*rtnl.Conn, *rtnl.Link) {
		c := kerneltest.Dial(h.T, h.NS)
		return c, kerneltest.Link(h.T, c, "veth")
	}
	dropRoute := func(t *testing.T, c *rtnl.Conn, dst string) {
		if err := c.Do(rtnl.DropRoute(rtnl.Route{Dst: netip.MustParsePrefix(dst)})); err != nil {
			t.Fatal(err)
		}
	}
	for name, tt := range map[string]struct {
		breaks func(h *applettest.Host, p applettest.Container)
		want   string
	}{
		"host route": {func(h *applettest.Host, p applettest.Container) { c, _ := hostEnd(h); dropRoute(h.T, c, "10.1.0.2/32") }, "route to 10.1.0.2/32"},
		"host route v6": {func(h *applettest.Host, p applettest.Container) {
			c, _ := hostEnd(h)
			dropRoute(h.T, c, "fd00:1::2/128")
		}, "route to fd00:1::2/128"},
		"gateway route": {func(h *applettest.Host, p applettest.Container) {
			dropRoute(h.T, kerneltest.Dial(h.T, p.NS), "fd00:1::1/128")
		}, "gateway"},
		"forwarding off": {func(h *applettest.Host, p applettest.Container) { h.NS.SetSysctl("net/ipv4/ip_forward", "0") }, "is off"},
		"gateway address": {func(h *applettest.Host, p applettest.Container) {
			c, l := hostEnd(h)
			if err := c.Do(rtnl.DropAddr(l.Index, rtnl.Addr{Prefix: netip.MustParsePrefix("10.1.0.1/32")})); err != nil {
				h.Fatal(err)
			}
		}, "gateway address 10.1.0.1"},
		"host end down": {func(h *applettest.Host, p applettest.Container) {
			c, l := hostEnd(h)
			if err := c.SetLink(l.Index, rtnl.LinkChange{Up: new(false)}); err != nil {
				h.Fatal(err)
			}
		}, "is down"},
		"masquerading": {func(h *applettest.Host, p applettest.Container) {
			if err := h.Release(p, 0); err != nil {
				h.Fatal(err)
			}
		}, "masquerading"},
	} {
		t.Run(name, func(t *testing.T) {
			h := applettest.NewHost(t)
			p := h.Container("a")
			res := h.Must(spec.Add, "ptp", applettest.PtpConf, p)
			tt.breaks(h, p)
			if code, out := h.Call(spec.Check, "ptp", applettest.Prev(applettest.PtpConf, res), p); code != spec.CodeCheck || !strings.Contains(out, tt.want) {
				t.Errorf("got %d %s, want code 102 with %q", code, out, tt.want)
			}
		})
	}
}

// CHECK accepts addresses of another interface, added by a later plugin. The host need not forward
// their family.
func TestKernelPtpCheckWithLaterInterface(t *testing.T) {
	h := applettest.NewHost(t)
	p := h.Container("a")
	conf := strings.NewReplacer(`,[{"subnet":"fd00:1::/64"}]`, "", `,{"dst":"::/0"}`, "").Replace(applettest.PtpConf)
	result := h.Must(spec.Add, "ptp", conf, p)
	h.Must(spec.Check, "ptp", applettest.Prev(conf, applettest.WithOtherInterface(result)), p)
}

// GET returns the result of ADD, and STATUS succeeds.
func TestKernelPtpGet(t *testing.T) {
	h := applettest.NewHost(t)
	p := h.Container("a")
	conf := strings.Replace(applettest.PtpConf, `"1.1.0"`, `"0.4.0"`, 1)
	if code, out := h.Call(spec.Get, "ptp", conf, p); code != spec.CodeUnknown {
		t.Errorf("GET of nothing: %d %s", code, out)
	}
	res := h.Must(spec.Add, "ptp", conf, p)
	if got := h.Must(spec.Get, "ptp", conf, p); got != res {
		t.Errorf("GET: got %s\nADD answered %s", got, res)
	}
	h.Must(spec.Status, "ptp", applettest.PtpConf, applettest.Container{})
}
