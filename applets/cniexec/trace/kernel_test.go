package trace_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/applets/cniexec/trace"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/nfttest"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/nft/foreign"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// A site is an applettest.Bridged whose links have these MAC addresses.
type site struct{ *applettest.Bridged }

var (
	hostMAC    = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	c1MAC      = net.HardwareAddr{2, 0, 0, 0, 0, 2}
	outsideMAC = net.HardwareAddr{2, 0, 0, 0, 0, 9}
)

// newSite returns a site. With brNetfilter the kernel calls chains of family ip for bridged frames;
// the test skips if br_netfilter is not loaded.
func newSite(t *testing.T, brNetfilter bool) *site {
	t.Helper()
	kerneltest.Need(t, "tables with an owner (Linux 5.12)", func() error {
		tracer, err := foreign.Trace(kerneltest.NS(t), foreign.Flow{})
		if err == nil {
			tracer.Close()
		} else if spec.AsError(err).Code == spec.CodeHost {
			err = unix.EOPNOTSUPP
		}
		return err
	})
	s := &site{applettest.NewBridged(t)}
	for _, key := range []string{"net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"} {
		value := map[bool]string{false: "0", true: "1"}[brNetfilter]
		if _, err := s.NS.Sysctl(key); err == nil {
			s.NoError(s.NS.SetSysctl(key, value))
		} else if brNetfilter {
			t.Skip("SKIPPED: br_netfilter is not loaded")
		}
	}
	for _, l := range []struct {
		ns   *netns.NS
		name string
		mac  net.HardwareAddr
	}{{s.NS, "br0", hostMAC}, {s.NS, "out0", hostMAC}, {s.C1.NS, "eth0", c1MAC}, {s.Outside, "eth0", outsideMAC}} {
		kerneltest.Brief(t, l.ns, func(c *rtnl.Conn) error {
			return c.SetLink(kerneltest.Link(t, c, l.name).Index, rtnl.LinkChange{MAC: l.mac})
		})
	}
	return s
}

// send returns a function that sends one packet from a namespace.
func (s *site) send(from *netns.NS, proto uint8, to string) func() (*trace.Socket, error) {
	return func() (*trace.Socket, error) { return trace.Dial(from, proto, netip.MustParseAddrPort(to)) }
}

// published returns a request to trace a packet from outside to a port of the host and into the
// container.
func (s *site) published(proto uint8, to string) trace.Request {
	port := netip.MustParseAddrPort(to).Port()
	return trace.Request{
		Places: []trace.Place{{"host", s.NS, foreign.Flow{Proto: proto, Port: port}}, {"c1", s.C1.NS, foreign.Flow{Proto: proto}}},
		Wait:   kerneltest.Timeout(20 * time.Second), Send: s.send(s.Outside, proto, to),
	}
}

// outbound returns a request to trace a packet from the container through the host.
func (s *site) outbound(proto uint8, to string) trace.Request {
	dst := netip.MustParseAddrPort(to)
	flow := foreign.Flow{Proto: proto, Dst: dst.Addr(), Port: dst.Port()}
	host := flow
	host.Src = []netip.Addr{netip.MustParseAddr("10.9.0.11"), netip.MustParseAddr("10.9.0.22")}
	if dst.Addr().Is6() {
		host.Src = []netip.Addr{netip.MustParseAddr("fd00:9::11")}
	}
	return trace.Request{
		Places: []trace.Place{{"c1", s.C1.NS, flow}, {"host", s.NS, host}},
		Wait:   kerneltest.Timeout(20 * time.Second), Send: s.send(s.C1.NS, proto, to),
	}
}

// Values that differ between runs: source ports, and the states of a resolved neighbour.
var (
	sourcePort = regexp.MustCompile(`(192\.0\.2\.[12]|10\.9\.0\.11|fd00:[29]::(?:2|11)\]):[0-9]{5}`)
	known      = regexp.MustCompile(`\b(reachable|stale|delay|probe)$`)
)

// want follows a packet and compares the trace. The tracing rules must be deleted afterwards.
func (s *site) want(r trace.Request, reached bool, lines ...string) {
	s.Helper()
	var before []string
	for _, p := range r.Places {
		before = append(before, nfttest.Ruleset(s.T, p.NS))
	}
	found, err := trace.Follow(s.Context(), r)
	s.NoError(err)
	var got []string
	for _, step := range found.Steps {
		text := sourcePort.ReplaceAllString(step.String(), "$1:PORT")
		got = append(got, known.ReplaceAllString(text, "known"))
	}
	got = append(got, found.Outcome, found.Advice)
	if want := strings.Join(lines, "\n"); strings.Join(got, "\n") != want || found.Reached != reached {
		s.Errorf("reached: %t\n%s", found.Reached, kerneltest.Diff(want, strings.Join(got, "\n")))
	}
	for i, p := range r.Places {
		// A process that another test forks holds the sockets until it calls execve.
		kerneltest.Eventually(s.T, "the rule set of "+p.Name+" as before", func() error {
			if after := nfttest.Ruleset(s.T, p.NS); after != before[i] {
				return errors.New(kerneltest.Diff(before[i], after))
			}
			return nil
		})
	}
}

const toC1 = `
table ip hj {
	chain pre {
		type nat hook prerouting priority mangle
		tcp dport 8080 dnat to 10.9.0.11:80
		udp dport 8080 dnat to 10.9.0.11:80
	}
}
table ip6 hj {
	chain pre {
		type nat hook prerouting priority mangle
		tcp dport 8080 dnat to [fd00:9::11]:80
	}
}`

// From another host to a published port and to the socket in the container.
func TestKernelPublished(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	nfttest.Load(t, s.NS, toC1)
	s.Occupy(s.C1.NS, "tcp", ":80")
	s.want(s.published(unix.IPPROTO_TCP, "192.0.2.1:8080"), true,
		"host prerouting from out0 tcp 192.0.2.2:PORT to 192.0.2.1:8080 -> ip hj pre (-150) handle 2: dnat to 10.9.0.11:80",
		"host route 10.9.0.0/24 dev br0",
		"host forward from out0 to br0",
		"host postrouting from out0 to br0",
		"host neighbour 10.9.0.11 02:00:00:00:00:02 known",
		"host bridge output to vc1",
		"host bridge postrouting to vc1",
		"c1 prerouting from eth0 tcp 192.0.2.2:PORT to 10.9.0.11:80",
		"c1 route local 10.9.0.11/32 dev eth0",
		"c1 input from eth0",
		"c1 port tcp [::]:80 listens",
		"delivered to c1, where tcp [::]:80 listens; an answer came", "")
	s.want(s.published(unix.IPPROTO_TCP, "[fd00:2::1]:8080"), true,
		"host prerouting from out0 tcp [fd00:2::2]:PORT to [fd00:2::1]:8080 -> ip6 hj pre (-150) handle 2: dnat to [fd00:9::11]:80",
		"host route fd00:9::/64 dev br0",
		"host forward from out0 to br0",
		"host postrouting from out0 to br0",
		"host neighbour fd00:9::11 02:00:00:00:00:02 known",
		"host bridge output to vc1",
		"host bridge postrouting to vc1",
		"c1 prerouting from eth0 tcp [fd00:2::2]:PORT to [fd00:9::11]:80",
		"c1 route local fd00:9::11/128 dev eth0",
		"c1 input from eth0",
		"c1 port tcp [::]:80 listens",
		"delivered to c1, where tcp [::]:80 listens; an answer came", "")
	r := s.published(unix.IPPROTO_UDP, "192.0.2.1:8080")
	last := "start the program, or see with `ss -lnp` on which address and port it listens"
	found, err := trace.Follow(t.Context(), r)
	if err != nil || found.Reached || found.Outcome != "delivered to c1, where nothing listens on udp 10.9.0.11:80" || found.Advice != last {
		t.Errorf("got %+v, %v", found, err)
	}
	s.Occupy(s.C1.NS, "udp", "127.0.0.1:80")
	r.Send = s.send(s.Outside, unix.IPPROTO_UDP, "192.0.2.1:8080")
	found, err = trace.Follow(t.Context(), r)
	if err != nil || found.Reached || found.Advice != "the program listens on 127.0.0.1:80: let it listen on any address" {
		t.Errorf("got %+v, %v", found, err)
	}
}

// A flow that is older than the rule of its port meets no rule, and one to a port without a rule neither.
func TestKernelPublishedAfterFlow(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	nfttest.Load(t, s.NS, strings.ReplaceAll(toC1, "8080", "9090")) // connection tracking is on
	flow, err := applettest.Connect(s.Outside, "udp", "192.0.2.1:8080", applettest.Timeout)
	s.NoError(err)
	defer flow.Close()
	r := s.published(unix.IPPROTO_UDP, "192.0.2.1:8080")
	r.Published = []netip.AddrPort{netip.MustParseAddrPort("10.9.0.11:80")}
	r.Send = func() (*trace.Socket, error) {
		_, err := flow.Write([]byte("?"))
		if errors.Is(err, unix.ECONNREFUSED) { // of the packet before
			_, err = flow.Write([]byte("?"))
		}
		return nil, err
	}
	_, err = r.Send()
	s.NoError(err)
	for _, rules := range []string{"", toC1} {
		if rules != "" {
			nfttest.Load(t, s.NS, rules)
		}
		found, err := trace.Follow(t.Context(), r)
		want := "delivered to host, where nothing listens on udp 192.0.2.1:8080; the port is published to 10.9.0.11:80, and no rule has led the packet there"
		if err != nil || found.Reached || !strings.HasPrefix(found.Outcome, want) || !strings.Contains(found.Advice, "cni-exec reload") {
			t.Errorf("with %q: got %+v, %v", rules, found, err)
		}
	}
	_, err = nft.Open(s.NS).FlushAstrayUDP([]netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:8080")}, netip.MustParseAddr("10.9.0.11"))
	s.NoError(err)
	found, err := trace.Follow(t.Context(), r)
	if err != nil || !strings.HasPrefix(found.Outcome, "delivered to c1, where nothing listens") {
		t.Errorf("without the old flow: %+v, %v", found, err)
	}
}

// An SCTP association to a published port is traced, and refused by the container, where nothing listens.
func TestKernelSCTP(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	kerneltest.Need(t, "CONFIG_IP_SCTP", func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
		if err != nil {
			return err
		}
		return unix.Close(fd)
	})
	nfttest.Load(t, s.NS, `table inet hj {
		chain pre { type nat hook prerouting priority dstnat; sctp dport 8080 dnat ip to 10.9.0.11:80; sctp dport 8080 dnat ip6 to [fd00:9::11]:80
		}
	}`)
	for to, want := range map[string][]string{
		"192.0.2.1:8080": {
			"host prerouting from out0 sctp 192.0.2.2:PORT to 192.0.2.1:8080 -> inet hj pre (-100) handle 2: dnat to 10.9.0.11:80",
			"host route 10.9.0.0/24 dev br0",
		},
		"[fd00:2::1]:8080": {
			"host prerouting from out0 sctp [fd00:2::2]:PORT to [fd00:2::1]:8080 -> inet hj pre (-100) handle 3: dnat to [fd00:9::11]:80",
			"host route fd00:9::/64 dev br0",
		},
	} {
		found, err := trace.Follow(t.Context(), s.published(unix.IPPROTO_SCTP, to))
		s.NoError(err)
		var got []string
		for _, step := range found.Steps {
			got = append(got, sourcePort.ReplaceAllString(step.String(), "$1:PORT"))
		}
		if len(got) < len(want) || !slices.Equal(got[:len(want)], want) || !strings.HasPrefix(found.Outcome, "delivered to c1") {
			t.Errorf("%s: %s\n%s", to, found.Outcome, strings.Join(got, "\n"))
		}
	}
}

// Another trace of this process may trace the same packet, as one that ended just now: the kernel
// deletes the table of a trace when the last process that has its socket closes that.
func TestKernelBesideAnotherTrace(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	r := s.published(unix.IPPROTO_UDP, "192.0.2.1:8080")
	for _, p := range r.Places {
		other, err := foreign.Trace(p.NS, p.Flow)
		s.NoError(err)
		defer other.Close()
	}
	nfttest.Load(t, s.NS, toC1)
	found, err := trace.Follow(t.Context(), r)
	s.NoError(err)
	if want := "delivered to c1, where nothing listens on udp 10.9.0.11:80"; found.Outcome != want {
		t.Errorf("%s, want %s\n%v", found.Outcome, want, found.Steps)
	}
}

// The trace names what drops the packet: the policy of a chain, a rule, a rule of family bridge, or
// a rule in the container.
func TestKernelDropped(t *testing.T) {
	t.Parallel()
	first := []string{
		"host prerouting from out0 tcp 192.0.2.2:PORT to 192.0.2.1:8080 -> ip hj pre (-150) handle 2: dnat to 10.9.0.11:80",
		"host route 10.9.0.0/24 dev br0",
	}
	tests := map[string]struct {
		rules, inside string
		want          []string
	}{
		"policy": {rules: `table ip filter {
			chain FORWARD { type filter hook forward priority filter; policy drop; }
		}`, want: []string{
			"host forward from out0 to br0 -> ip filter FORWARD (0): drop (policy)",
			"dropped in host by the policy of ip filter FORWARD",
			"accept it there: `nft add rule ip filter FORWARD ip daddr 10.9.0.11 tcp dport 80 accept`",
		}},
		"rule": {rules: `table inet fw {
			chain admin { counter
				ip daddr 10.9.0.11 drop comment "no"
			}
			chain forward { type filter hook forward priority filter - 5; policy accept; jump admin
			}
		}`, want: []string{
			`host forward from out0 to br0 -> inet fw forward (-5) handle 5: jump admin -> inet fw admin handle 4: drop comment "no"`,
			"dropped in host by inet fw admin handle 4",
			"`nft delete rule inet fw admin handle 4` deletes the rule, `nft -a list chain inet fw admin` shows it",
		}},
		"reject": {rules: `table ip filter {
			chain FORWARD { type filter hook forward priority filter; policy accept; reject
			}
		}`, want: []string{
			"host forward from out0 to br0 -> ip filter FORWARD (0) handle 2: reject",
			"dropped in host by ip filter FORWARD handle 2",
			"`nft delete rule ip filter FORWARD handle 2` deletes the rule, `nft -a list chain ip filter FORWARD` shows it",
		}},
		"bridge": {rules: `table bridge fw {
			chain out { type filter hook output priority filter; policy accept; ip daddr 10.9.0.11 drop
			}
		}`, want: []string{
			"host forward from out0 to br0",
			"host postrouting from out0 to br0",
			"host neighbour 10.9.0.11 02:00:00:00:00:02 known",
			"host bridge output to vc1 -> bridge fw out (-200) handle 2: drop",
			"dropped in host by bridge fw out handle 2",
			"`nft delete rule bridge fw out handle 2` deletes the rule, `nft -a list chain bridge fw out` shows it",
		}},
		"in the container": {inside: `table inet fw {
			chain in { type filter hook input priority filter; policy drop; tcp dport 22 accept
			}
		}`, want: []string{
			"host forward from out0 to br0",
			"host postrouting from out0 to br0",
			"host neighbour 10.9.0.11 02:00:00:00:00:02 known",
			"host bridge output to vc1",
			"host bridge postrouting to vc1",
			"c1 prerouting from eth0 tcp 192.0.2.2:PORT to 10.9.0.11:80",
			"c1 route local 10.9.0.11/32 dev eth0",
			"c1 input from eth0 -> inet fw in (0): drop (policy)",
			"dropped in c1 by the policy of inet fw in",
			"in c1: accept it there: `nft add rule inet fw in ip daddr 10.9.0.11 tcp dport 80 accept`",
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, false)
			nfttest.Load(t, s.NS, toC1+"\n"+tt.rules)
			nfttest.Load(t, s.C1.NS, tt.inside)
			s.Occupy(s.C1.NS, "tcp", ":80")
			s.want(s.published(unix.IPPROTO_TCP, "192.0.2.1:8080"), false, append(first, tt.want...)...)
		})
	}
}

// The trace names a rule of another program that translates before the plugin's rule does, and the
// destination to which the port is published.
func TestKernelForeignDNAT(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	nfttest.Load(t, s.NS, `table ip hj {
		chain pre { type nat hook prerouting priority mangle; tcp dport 8080 dnat to 10.9.0.11:81
		}
	}`)
	s.Occupy(s.C1.NS, "tcp", ":80")
	r := s.published(unix.IPPROTO_TCP, "192.0.2.1:8080")
	r.Published = []netip.AddrPort{netip.MustParseAddrPort("10.9.0.11:80")}
	s.want(r, false,
		"host prerouting from out0 tcp 192.0.2.2:PORT to 192.0.2.1:8080 -> ip hj pre (-150) handle 2: dnat to 10.9.0.11:81",
		"host route 10.9.0.0/24 dev br0",
		"host forward from out0 to br0",
		"host postrouting from out0 to br0",
		"host neighbour 10.9.0.11 02:00:00:00:00:02 known",
		"host bridge output to vc1",
		"host bridge postrouting to vc1",
		"c1 prerouting from eth0 tcp 192.0.2.2:PORT to 10.9.0.11:81",
		"c1 route local 10.9.0.11/32 dev eth0",
		"c1 input from eth0",
		"c1 port tcp 10.9.0.11:81: nothing listens",
		"ip hj pre (-150) handle 2 leads to 10.9.0.11:81, and the port is published to 10.9.0.11:80; delivered to c1, where nothing listens on tcp 10.9.0.11:81",
		"`nft delete rule ip hj pre handle 2` deletes that rule; start the program, or see with `ss -lnp` on which address and port it listens")
}

// From the container, translated to the host's address. With br_netfilter, prerouting of family ip
// is called in the bridge.
func TestKernelOutbound(t *testing.T) {
	t.Parallel()
	for name, brNetfilter := range map[string]bool{"plain": false, "br_netfilter": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, brNetfilter)
			nfttest.Load(t, s.NS, `table ip nat {
				chain post { type nat hook postrouting priority srcnat; oifname "out0" masquerade
				}
			}`)
			first := []string{
				"c1 output to eth0 tcp 10.9.0.11:PORT to 192.0.2.2:443",
				"c1 route default via 10.9.0.1 dev eth0",
				"c1 postrouting to eth0",
				"c1 neighbour 10.9.0.1 02:00:00:00:00:01 known",
				"host bridge prerouting from vc1 tcp 10.9.0.11:PORT to 192.0.2.2:443",
				"host bridge input from vc1",
				"host prerouting from br0",
				"host route 192.0.2.0/24 dev out0",
			}
			if brNetfilter {
				first[5], first[6] = first[6], first[5]
			}
			out := append(slices.Clip(first),
				"host forward from br0 to out0",
				"host postrouting from br0 to out0 -> ip nat post (100) handle 2: snat to 192.0.2.1:PORT",
				"host neighbour 192.0.2.2 02:00:00:00:00:09 known")
			s.want(s.outbound(unix.IPPROTO_TCP, "192.0.2.2:443"), false, append(slices.Clip(out),
				"left host by out0 for 192.0.2.2:443; the answer: connection refused", "nothing listens there, or a firewall rejects it")...)
			s.Occupy(s.Outside, "tcp", ":443")
			s.want(s.outbound(unix.IPPROTO_TCP, "192.0.2.2:443"), true, append(slices.Clip(out), "left host by out0 for 192.0.2.2:443; an answer came", "")...)

			s.NoError(s.NS.SetSysctl("net/ipv4/ip_forward", "0"))
			first[7] = "host route to 192.0.2.2: no route to host"
			s.want(s.outbound(unix.IPPROTO_TCP, "192.0.2.2:443"), false, append(first,
				"host does not forward (net.ipv4.ip_forward is 0)", "`sysctl -w net.ipv4.ip_forward=1`")...)
			s.NoError(s.NS.SetSysctl("net/ipv4/ip_forward", "1"))
			s.NoError(s.NS.SetSysctl("net/ipv4/conf/br0/forwarding", "0"))
			s.want(s.outbound(unix.IPPROTO_TCP, "192.0.2.2:443"), false, append(first,
				"host does not forward (net.ipv4.conf.br0.forwarding is 0)", "`sysctl -w net.ipv4.conf.br0.forwarding=1`")...)
		})
	}
}

// The kernel returns an error to the sender if a rule in output drops the packet.
func TestKernelDroppedAtOutput(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	nfttest.Load(t, s.C1.NS, `table inet fw {
		chain out { type filter hook output priority filter; policy accept; meta l4proto { tcp, udp } drop
		}
	}`)
	for proto, name := range map[uint8]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp"} {
		s.want(s.outbound(proto, "192.0.2.2:443"), false,
			"c1 output to eth0 "+name+" 10.9.0.11:PORT to 192.0.2.2:443 -> inet fw out (0) handle 3: drop",
			"dropped in c1 by inet fw out handle 3",
			"in c1: `nft delete rule inet fw out handle 3` deletes the rule, `nft -a list chain inet fw out` shows it")
	}
}

// Packets lost outside of nf_tables: no route, no neighbour, the reverse path filter.
func TestKernelLostOutsideNFTables(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	outcome := s.outcome
	outcome(s.outbound(unix.IPPROTO_TCP, "203.0.113.1:443"), "host has no route to 203.0.113.1: network is unreachable", "ip route add 203.0.113.1/32 via ROUTER")
	outcome(s.outbound(unix.IPPROTO_UDP, "[2001:db8:1::1]:443"), "host has no route to 2001:db8:1::1: network is unreachable", "ip route add 2001:db8:1::1/128 via ROUTER")
	s.NoError(s.NS.SetSysctl("net/ipv6/conf/all/forwarding", "0"))
	outcome(s.outbound(unix.IPPROTO_UDP, "[fd00:2::2]:443"), "host does not forward (net.ipv6.conf.all.forwarding is 0)", "sysctl -w net.ipv6.conf.all.forwarding=1")
	outcome(s.outbound(unix.IPPROTO_UDP, "192.0.2.77:53"), "lost in host: no answer from 192.0.2.77 on out0, whose MAC address is needed", "ip neigh show dev out0")

	s.NoError(s.NS.SetSysctl("net/ipv4/conf/br0/rp_filter", "1"))
	c1 := kerneltest.Dial(t, s.C1.NS)
	eth0, err := c1.Link("eth0")
	s.NoError(err)
	other := netip.MustParseAddr("192.0.2.88") // rp_filter expects it behind out0
	s.NoError(c1.AddAddr(eth0.Index, rtnl.Addr{Prefix: netip.MustParsePrefix("192.0.2.88/32")}))
	s.NoError(c1.Do(rtnl.ReplaceRoute(rtnl.Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), GW: netip.MustParseAddr("10.9.0.1"), Link: eth0.Index, Src: other})))
	r := s.outbound(unix.IPPROTO_TCP, "192.0.2.2:443")
	r.Places[1].Flow.Src = []netip.Addr{other}
	outcome(r, "dropped in host by rp_filter: the route back to 192.0.2.88 does not lead out of br0", "sysctl -w net.ipv4.conf.br0.rp_filter=2")

	s.NoError(c1.Do(rtnl.DropRoute(rtnl.Route{Dst: netip.MustParsePrefix("0.0.0.0/0")})))
	outcome(s.outbound(unix.IPPROTO_TCP, "192.0.2.2:443"), "c1 sends nothing: network is unreachable", "no route")
}

// A trace ends without a packet after Wait or with its context.
func TestKernelWaitEnds(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	r := s.published(unix.IPPROTO_TCP, "192.0.2.1:8080")
	r.Send, r.Wait = nil, time.Millisecond
	s.want(r, false, "no such packet came to host within 1ms",
		"start the client meanwhile, or let --send send one; packets dropped earlier, by XDP, tc or the network, never reach nf_tables")
	r.Wait = time.Hour
	ctx, cancel := context.WithCancelCause(t.Context())
	r.Send = func() (*trace.Socket, error) {
		cancel(os.ErrDeadlineExceeded)
		return nil, nil
	}
	if found, err := trace.Follow(ctx, r); err == nil {
		t.Errorf("got %+v, want an error", found)
	}
}

// busy sends the first packets of connections from a namespace until the test ends: a thousand a second at most, twenty times
// what is traced of a flow. As many as a processor can send could starve a trace, which says so then: with slower, half as
// many are sent.
func (s *site) busy(from *netns.NS, to string) (slower func()) {
	s.Helper()
	stop, stopped, sent := make(chan struct{}), make(chan struct{}), make(chan struct{})
	pace := time.NewTicker(time.Millisecond)
	go func() {
		defer close(stopped)
		defer pace.Stop()
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			case <-pace.C:
			}
			if socket, err := trace.Dial(from, unix.IPPROTO_TCP, netip.MustParseAddrPort(to)); err == nil {
				socket.Close()
			}
			if n == 100 {
				close(sent)
			}
		}
	}()
	<-sent
	s.Cleanup(func() {
		close(stop)
		<-stopped
	})
	every := time.Millisecond
	return func() {
		every *= 2
		pace.Reset(every)
	}
}

// together follows a packet several times at once. If more match than can be traced it calls slower
// and follows it again; at 125 a second more still match than are traced of a flow.
func (s *site) together(r trace.Request, outcome string, slower func()) {
	s.Helper()
	for tries := 3; ; tries-- {
		answers := make(chan string, 4)
		for range cap(answers) {
			go func() {
				found, err := trace.Follow(s.Context(), r)
				if err != nil {
					answers <- err.Error()
					return
				}
				answers <- found.Outcome
			}()
		}
		starved := false
		for range cap(answers) {
			switch found := <-answers; {
			case strings.HasPrefix(found, outcome):
			case tries > 0 && strings.Contains(found, "more packets match than can be traced"):
				starved = true
			default:
				s.Errorf("got %s; want %s", found, outcome)
			}
		}
		if !starved {
			return
		}
		slower()
	}
}

// Of a flow that is busier than what is traced, a packet that arrives does so in the trace too, and one that is lost is lost.
func TestKernelBusy(t *testing.T) {
	s := newSite(t, false)
	nfttest.Load(t, s.NS, toC1)
	s.Occupy(s.C1.NS, "tcp", ":80")
	r := s.published(unix.IPPROTO_TCP, "192.0.2.1:8080")
	r.Send = nil
	slower := s.busy(s.Outside, "192.0.2.1:8080")
	for range 3 {
		s.together(r, "delivered to c1, where tcp [::]:80 listens", slower)
	}
	nfttest.Load(t, s.C1.NS, `table netdev fw {
		chain in { type filter hook ingress device eth0 priority filter; policy accept; tcp dport 80 drop
		}
	}`)
	s.together(r, "left host by vc1, and did not come to c1, which has 10.9.0.11", slower)
}

// ip runs ip(8) in a namespace.
func (s *site) ip(ns *netns.NS, args string) {
	s.Helper()
	kerneltest.Tool(s.T, ns, "", "ip", strings.Fields(args)...)
}

// outcome follows a packet that does not get there.
func (s *site) outcome(r trace.Request, want, advice string) {
	s.Helper()
	found, err := trace.Follow(s.Context(), r)
	if err != nil || found.Reached || found.Outcome != want || !strings.Contains(found.Advice, advice) {
		s.Errorf("got %+v, %v; want %q, %q", found, err, want, advice)
	}
}

// A packet that was sent and arrives has no success without its answer.
func TestKernelNoAnswer(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	nfttest.Load(t, s.NS, toC1)
	s.Occupy(s.C1.NS, "tcp", ":80")
	nfttest.Load(t, s.Outside, `table inet fw {
		chain in { type filter hook input priority filter; policy accept; meta l4proto { tcp, udp } th dport 443 drop
		}
	}`)
	s.outcome(s.outbound(unix.IPPROTO_TCP, "192.0.2.2:443"), "left host by out0 for 192.0.2.2:443; no answer came within 2s", "192.0.2.2 does not answer")
	s.ip(s.C1.NS, "neigh replace 10.9.0.1 lladdr 02:00:00:00:00:77 dev eth0 nud permanent")
	s.outcome(s.published(unix.IPPROTO_TCP, "192.0.2.1:8080"), "delivered to c1, where tcp [::]:80 listens; no answer came within 2s",
		"c1 sends the answer to 10.9.0.1 02:00:00:00:00:77 (permanent), and the address is that of host, which has 02:00:00:00:00:01: in c1: `ip neigh del 10.9.0.1 dev eth0`")
	found, err := trace.Follow(t.Context(), s.outbound(unix.IPPROTO_UDP, "192.0.2.2:443"))
	if s.NoError(err); !strings.HasSuffix(found.Outcome, "; no answer came within 2s, which not every program gives") {
		t.Errorf("UDP: %+v", found)
	}
}

// Rules and routes that drop packets at the route lookup are named, also where the packet is not sent at all.
func TestKernelRouteLookupDrops(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	nfttest.Load(t, s.NS, toC1)
	s.ip(s.NS, "rule add to 10.9.0.11 blackhole pref 100")
	byRule, repair := "dropped in host by the rule 100: to 10.9.0.11 blackhole", "`ip rule del pref 100 to 10.9.0.11 blackhole` deletes it"
	s.outcome(s.published(unix.IPPROTO_TCP, "192.0.2.1:8080"), byRule, repair)
	own := foreign.Flow{Proto: unix.IPPROTO_TCP, Dst: netip.MustParseAddr("10.9.0.11"), Port: 80}
	r := trace.Request{Places: []trace.Place{{"host", s.NS, own}, {"c1", s.C1.NS, foreign.Flow{Proto: unix.IPPROTO_TCP}}}, Wait: time.Millisecond}
	s.outcome(r, byRule, repair)
	r.Send = s.send(s.NS, unix.IPPROTO_TCP, "10.9.0.11:80")
	s.outcome(r, byRule, repair)

	s.ip(s.NS, "route add prohibit 203.0.113.0/24 metric 5")
	s.outcome(s.outbound(unix.IPPROTO_TCP, "203.0.113.1:443"), "dropped in host by the route prohibit 203.0.113.0/24 metric 5", "`ip route del prohibit 203.0.113.0/24 metric 5` deletes it")
	s.ip(s.C1.NS, "-6 route add unreachable 2001:db8::/32")
	s.outcome(s.outbound(unix.IPPROTO_UDP, "[2001:db8::1]:443"), "dropped in c1 by the route unreachable 2001:db8::/32 metric 1024", "in c1: `ip -6 route del unreachable 2001:db8::/32 metric 1024`")
}

// ARP that a rule of family bridge drops is not the fault of the container that gets none.
func TestKernelARPDropped(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	nfttest.Load(t, s.NS, `table bridge fw {
		chain out { type filter hook output priority filter; policy accept; ether type arp drop
		}
	}`)
	s.ip(s.NS, "neigh flush dev br0")
	flow := foreign.Flow{Proto: unix.IPPROTO_UDP, Dst: netip.MustParseAddr("10.9.0.11"), Port: 53}
	s.outcome(trace.Request{
		Places: []trace.Place{{"host", s.NS, flow}, {"c1", s.C1.NS, foreign.Flow{Proto: unix.IPPROTO_UDP}}},
		Wait:   time.Second, Send: s.send(s.NS, unix.IPPROTO_UDP, "10.9.0.11:53"),
	}, "lost between host and c1, which has 10.9.0.11: its MAC address is needed, and no answer comes on br0", "ARP and frames also pass bridge fw out")
}

// Ports that are isolated are named, with and without br_netfilter.
func TestKernelIsolatedPorts(t *testing.T) {
	t.Parallel()
	for name, brNetfilter := range map[string]bool{"plain": false, "br_netfilter": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, brNetfilter)
			s.ip(s.C1.NS, "neigh replace 10.9.0.12 lladdr 02:00:00:00:00:03 dev eth0 nud permanent")
			for _, port := range []string{"vc1", "vc2"} {
				s.ip(s.NS, "link set "+port+" type bridge_slave isolated on")
			}
			s.outcome(s.outbound(unix.IPPROTO_TCP, "10.9.0.12:80"), "lost in host: the port vc1 is isolated, so that it reaches no other isolated port of its bridge", "ip link set vc1 type bridge_slave isolated off")
		})
	}
}

// Packets that have come before Restart are not reported after it.
func TestKernelRestart(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	tracer, err := foreign.Trace(s.NS, foreign.Flow{Proto: unix.IPPROTO_UDP, Port: 53})
	s.NoError(err)
	defer tracer.Close()
	send := func() {
		socket, err := trace.Dial(s.Outside, unix.IPPROTO_UDP, netip.MustParseAddrPort("192.0.2.1:53"))
		s.NoError(err)
		socket.Close()
	}
	heard := func() (all []foreign.Traced) {
		kerneltest.Until(t, "the packet", func() bool {
			events, err := tracer.Rest()
			s.NoError(err)
			all = append(all, events...)
			return slices.ContainsFunc(all, func(e foreign.Traced) bool { return e.Own == "last" && e.Base.Hook == "input" })
		})
		return all
	}
	send()
	all := heard()
	send()
	s.NoError(tracer.Restart())
	send()
	if again := heard(); len(again) != len(all) || again[0].Packet.Src == all[0].Packet.Src {
		t.Errorf("%d messages of a packet, and %d after Restart", len(all), len(again))
	}
}
