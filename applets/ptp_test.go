//go:build !no_ptp

package applets_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"cnibox/internal/kerneltest"
	"cnibox/rtnl"
	"cnibox/spec"
)

func init() {
	rollbackConfs["ptp"] = `{"cniVersion":"1.1.0","name":"demo","type":"ptp","ipMasq":true,"mtu":1400,
		"ipam":{"type":"host-local","dataDir":"$DIR","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]],
			"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"},{"dst":"10.9.0.0/16","mtu":1300,"priority":5}]}}`
}

const ptpConf = `{"cniVersion":"1.1.0","name":"demo","type":"ptp","ipMasq":true,
	"ipam":{"type":"host-local","dataDir":"$DIR","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]],
		"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}}`

// ptpOf is a configuration whose keys are those given.
func ptpOf(keys string) string {
	return `{"cniVersion":"1.1.0","name":"demo","type":"ptp",` + keys + `}`
}

// routesOf lists the routes of a namespace's main table as ip-route(8) does, without
// those that the kernel has made by itself.
func routesOf(t *testing.T, ns *rtnl.NS) (out []string) {
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

// The routes are the reference's: the container reaches its neighbours too through the
// gateway address, and the host has one route for each address.
func TestKernelPtpRoutes(t *testing.T) {
	n := newNode(t)
	p := n.pod("a")
	endlessDAD(t, n.host, p.ns)
	res := n.must(spec.Add, "ptp", ptpConf, p)
	for ns, want := range map[*rtnl.NS][2]string{n.host: {"veth", "fd00:1::1/"}, p.ns: {"eth0", "fd00:1::2/"}} {
		c := kerneltest.Dial(t, ns)
		if addr := addrsOf(t, c, linkOf(t, c, want[0]).Index, want[1]); addr.Tentative || !addr.NoDAD {
			t.Errorf("nobody else can have %+v", addr)
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
	if got := routesOf(t, p.ns); !slices.Equal(got, want) {
		t.Errorf("container: got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got := routesOf(t, n.host); !slices.Equal(got, []string{"10.1.0.2/32 dev veth scope 254", "fd00:1::2/128 dev veth"}) {
		t.Errorf("host: got\n%s", strings.Join(got, "\n"))
	}
	if strings.Index(res, `"name": "veth`) > strings.Index(res, `"name": "eth0"`) || !strings.Contains(res, `"interface": 1`) {
		t.Errorf("the host end comes first, and the addresses are the other's: %s", res)
	}
	n.must(spec.Check, "ptp", prev(ptpConf, res), p)
}

// endlessDAD lets duplicate detection on new links of these namespaces take longer than
// any test: the kernel counts to 255 there, and begins when it likes to within a day.
func endlessDAD(t *testing.T, namespaces ...*rtnl.NS) {
	t.Helper()
	for _, ns := range namespaces {
		detection(t, ns, "86400", "255")
	}
}

// usable waits until a link has an IPv6 link-local address that is not tentative, without
// which nobody is asked for on behalf of others. The kernel gives it in its own time.
func usable(t *testing.T, ns *rtnl.NS, l rtnl.Link) {
	t.Helper()
	c := kerneltest.Dial(t, ns)
	until(t, func() error {
		addrs, err := c.Addrs(l.Index)
		for _, a := range addrs {
			if a.Prefix.Addr().Is6() && a.Prefix.Addr().IsLinkLocalUnicast() && !a.Tentative {
				return nil
			}
		}
		return errors.Join(err, fmt.Errorf("%s has no link-local address to use: %+v", l.Name, addrs))
	})
}

// Two containers reach each other, and the gateway, in both families: the host end does
// not wait for its link-local address either.
func TestKernelPtpTraffic(t *testing.T) {
	n := newNode(t)
	a, b := n.pod("a"), n.pod("b")
	endlessDAD(t, n.host, a.ns, b.ns)
	n.must(spec.Add, "ptp", ptpConf, a)
	n.must(spec.Add, "ptp", ptpConf, b)
	n.echo(b)
	n.echo(pod{id: "host", ns: n.host})
	for _, l := range links(t, n.host) {
		if l.Name != "lo" {
			usable(t, n.host, l)
		}
	}
	for addr, want := range map[string]string{"10.1.0.3": "b", "fd00:1::3": "b", "10.1.0.1": "host", "fd00:1::1": "host"} {
		if who := ask(t, a.ns, addr, patience); who != want {
			t.Errorf("%s is answered by %q, want %q", addr, who, want)
		}
	}
}

// [S] of the reference, done right: a single address, two addresses of one subnet, two
// with one gateway.
func TestKernelPtpAddresses(t *testing.T) {
	for name, tt := range map[string]struct {
		ranges string
		want   []string // on the host
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
			n := newNode(t)
			p := n.pod("a")
			conf := ptpOf(`"ipam":{"type":"host-local","dataDir":"$DIR","ranges":[` + tt.ranges + `],"routes":[{"dst":"0.0.0.0/0"}]}`)
			res := n.must(spec.Add, "ptp", conf, p)
			n.must(spec.Check, "ptp", prev(conf, res), p)
			n.echo(p)
			for _, addr := range tt.want {
				if who := ask(t, n.host, addr, patience); who != "a" {
					t.Errorf("%s is answered by %q", addr, who)
				}
			}
			before := n.state(p)
			n.must(spec.Check, "ptp", prev(conf, res), p)
			if after := n.state(p); after != before {
				t.Errorf("CHECK changed\n%s", kerneltest.Diff(before, after))
			}
		})
	}
}

// What cannot work is refused before anything is made, or leaves nothing.
func TestKernelPtpRefuses(t *testing.T) {
	n := newNode(t)
	p := n.pod("a")
	before := n.state(p)
	for name, tt := range map[string]struct{ keys, want string }{
		"no ipam":  {`"mtu":1400`, "no plugin name provided"},
		"mtu":      {`"mtu":12,"ipam":{"type":"host-local"}`, "is not within 68 to 65535"},
		"backend":  {`"ipMasqBackend":"ipfw","ipam":{"type":"host-local"}`, "unknown ipmasq backend"},
		"mac":      {`"runtimeConfig":{"mac":"01:00:5e:00:00:01"},"ipam":{"type":"host-local","dataDir":"$DIR","subnet":"10.1.0.0/24"}`, "mac"},
		"mtu type": {`"mtu":"1400","ipam":{"type":"host-local"}`, "mtu"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out := n.call(t.Context(), spec.Add, "ptp", ptpOf(tt.keys), p)
			if code != spec.CodeConfig || !strings.Contains(strings.ToLower(out), tt.want) {
				t.Errorf("got %d %s, want code 7 with %q", code, out, tt.want)
			}
		})
	}
	if after := n.state(p); after != before {
		t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
	}
}

// DEL cleans rules, link and lease whatever is missing, and so does a second one. The
// reference leaves the rules where the link or the namespace has gone [S].
func TestKernelPtpDel(t *testing.T) {
	for name, del := range map[string]func(n *node, p pod){
		"plain":        func(n *node, p pod) { n.must(spec.Del, "ptp", ptpConf, p) },
		"no namespace": func(n *node, p pod) { n.must(spec.Del, "ptp", ptpConf, p, "CNI_NETNS=") },
		"namespace gone": func(n *node, p pod) {
			n.must(spec.Del, "ptp", ptpConf, p, "CNI_NETNS=/nowhere/netns")
		},
		"a file in its place": func(n *node, p pod) { n.must(spec.Del, "ptp", ptpConf, p, "CNI_NETNS=/etc/hostname") },
		"no link": func(n *node, p pod) {
			if err := kerneltest.Dial(n.t, p.ns).DelLink("eth0"); err != nil {
				n.t.Fatal(err)
			}
			n.must(spec.Del, "ptp", ptpConf, p)
		},
		"invalid configuration": func(n *node, p pod) {
			n.must(spec.Del, "ptp", strings.Replace(ptpConf, `"ipMasq":true`, `"mtu":1`, 1), p)
		},
		"GC": func(n *node, p pod) {
			n.must(spec.GC, "ptp", strings.Replace(ptpConf, `"type":"ptp"`, `"type":"ptp","cni.dev/valid-attachments":[{"containerID":"other","ifname":"eth0"}]`, 1), pod{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			p, other := n.pod("a"), n.pod("other")
			otherRes := n.must(spec.Add, "ptp", ptpConf, other)
			before := n.state(p)
			n.must(spec.Add, "ptp", ptpConf, p)
			del(n, p)
			if after := n.state(p); after != before {
				t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
			}
			n.must(spec.Del, "ptp", ptpConf, p)
			n.must(spec.Check, "ptp", prev(ptpConf, otherRes), other)
		})
	}
}

// CHECK finds what is missing on either side; the reference looks at none of it.
func TestKernelPtpCheck(t *testing.T) {
	hostEnd := func(n *node) (*rtnl.Conn, *rtnl.Link) {
		c := kerneltest.Dial(n.t, n.host)
		return c, linkOf(n.t, c, "veth")
	}
	dropRoute := func(t *testing.T, c *rtnl.Conn, dst string) {
		if err := c.Do(rtnl.DropRoute(rtnl.Route{Dst: netip.MustParsePrefix(dst)})); err != nil {
			t.Fatal(err)
		}
	}
	for name, tt := range map[string]struct {
		breaks func(n *node, p pod)
		want   string
	}{
		"host route":     {func(n *node, p pod) { c, _ := hostEnd(n); dropRoute(n.t, c, "10.1.0.2/32") }, "route to 10.1.0.2/32"},
		"host route v6":  {func(n *node, p pod) { c, _ := hostEnd(n); dropRoute(n.t, c, "fd00:1::2/128") }, "route to fd00:1::2/128"},
		"gateway route":  {func(n *node, p pod) { dropRoute(n.t, kerneltest.Dial(n.t, p.ns), "fd00:1::1/128") }, "gateway"},
		"forwarding off": {func(n *node, p pod) { n.host.SetSysctl("net/ipv4/ip_forward", "0") }, "forwarding is off"},
		"gateway address": {func(n *node, p pod) {
			c, l := hostEnd(n)
			if err := c.Do(rtnl.DropAddr(l.Index, rtnl.Addr{Prefix: prefix("10.1.0.1/32")})); err != nil {
				n.t.Fatal(err)
			}
		}, "gateway address 10.1.0.1"},
		"host end down": {func(n *node, p pod) {
			c, l := hostEnd(n)
			if err := c.SetLink(l.Index, rtnl.LinkChange{Up: new(false)}); err != nil {
				n.t.Fatal(err)
			}
		}, "is down"},
		"masquerading": {func(n *node, p pod) {
			if err := releaseAll(n.t, n, p, 0); err != nil {
				n.t.Fatal(err)
			}
		}, "masquerading"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			p := n.pod("a")
			res := n.must(spec.Add, "ptp", ptpConf, p)
			tt.breaks(n, p)
			if code, out := n.call(t.Context(), spec.Check, "ptp", prev(ptpConf, res), p); code != spec.CodeCheck || !strings.Contains(out, tt.want) {
				t.Errorf("got %d %s, want code 102 with %q", code, out, tt.want)
			}
		})
	}
}

// CHECK passes when a later plugin has entered addresses of another interface, whose
// family the host need not forward.
func TestKernelPtpCheckAfterOthers(t *testing.T) {
	n := newNode(t)
	p := n.pod("a")
	conf := strings.NewReplacer(`,[{"subnet":"fd00:1::/64"}]`, "", `,{"dst":"::/0"}`, "").Replace(ptpConf)
	result := n.must(spec.Add, "ptp", conf, p)
	n.must(spec.Check, "ptp", prev(conf, withStranger(result)), p)
}

// GET tells again what ADD told, and STATUS is healthy.
func TestKernelPtpGet(t *testing.T) {
	n := newNode(t)
	p := n.pod("a")
	conf := strings.Replace(ptpConf, `"1.1.0"`, `"0.4.0"`, 1)
	if code, out := n.call(t.Context(), spec.Get, "ptp", conf, p); code != spec.CodeUnknown {
		t.Errorf("GET of nothing: %d %s", code, out)
	}
	res := n.must(spec.Add, "ptp", conf, p)
	if got := n.must(spec.Get, "ptp", conf, p); got != res {
		t.Errorf("GET: got %s\nADD told %s", got, res)
	}
	n.must(spec.Status, "ptp", ptpConf, pod{})
}
