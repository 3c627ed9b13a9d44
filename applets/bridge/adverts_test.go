package bridge_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/fault"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// advertisedPrefix is the prefix that a container advertises.
const advertisedPrefix = "2001:db8:bad::"

// advert returns an IPv6 packet to all nodes with a router advertisement (RFC 4861, section 4.2)
// for a default route and a prefix with autonomous addresses. With options it follows a destination
// options header, which evades some filters (RFC 7113).
func advert(from netip.Addr, options bool) []byte {
	icmp := []byte{134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0,
		3, 4, 64, 0xc0, 0, 0, 0x0e, 0x10, 0, 0, 0x0e, 0x10, 0, 0, 0, 0}
	icmp = append(icmp, netip.MustParseAddr(advertisedPrefix).AsSlice()...)
	to := netip.MustParseAddr("ff02::1")
	pseudo := append(append(from.AsSlice(), to.AsSlice()...), 0, 0, 0, byte(len(icmp)), 0, 0, 0, unix.IPPROTO_ICMPV6)
	sum := uint32(0)
	for b := append(pseudo, icmp...); len(b) > 0; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(icmp[2:], ^uint16(sum+sum>>16))
	next := byte(unix.IPPROTO_ICMPV6)
	if options {
		icmp = append([]byte{next, 0, 1, 4, 0, 0, 0, 0}, icmp...) // PadN
		next = unix.IPPROTO_DSTOPTS
	}
	head := append([]byte{0x60, 0, 0, 0, 0, byte(len(icmp)), next, 255}, from.AsSlice()...)
	return append(append(head, to.AsSlice()...), icmp...)
}

// advertise sends an advertisement out of eth0 of a container. With tags the frame has VLAN headers
// of VLAN 0, which the receiving kernel removes.
func advertise(t *testing.T, p applettest.Container, options bool, tags ...uint16) {
	t.Helper()
	c := kerneltest.Dial(t, p.NS)
	eth0 := kerneltest.Link(t, c, "eth0")
	from := kerneltest.LinkLocal(t, p.NS, "eth0")
	packet := advert(from, options)
	frame := append([]byte{0x33, 0x33, 0, 0, 0, 1}, eth0.MAC...)
	for _, tag := range tags {
		frame = append(binary.BigEndian.AppendUint16(frame, tag), 0, 0)
	}
	frame = append(append(frame, 0x86, 0xdd), packet...)
	err := p.NS.Do(func() error {
		if tags == nil && !options { // from an ordinary socket
			fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255); err != nil {
				return err
			}
			return unix.Sendto(fd, packet[40:], 0, &unix.SockaddrInet6{Addr: netip.MustParseAddr("ff02::1").As16(), ZoneId: eth0.Index})
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: int(eth0.Index), Halen: 6})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// acceptedFrom returns the addresses and routes that a container has added because of an
// advertisement.
func acceptedFrom(t *testing.T, p applettest.Container) (taken []string) {
	t.Helper()
	c := kerneltest.Dial(t, p.NS)
	eth0 := kerneltest.Link(t, c, "eth0")
	addrs, err := c.Addrs(eth0.Index)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if strings.HasPrefix(a.Prefix.String(), "2001:db8:bad:") {
			taken = append(taken, a.Prefix.String())
		}
	}
	routes, err := c.Routes(rtnl.RouteFilter{Dst: netip.MustParsePrefix("::/0")})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		if r.GW.IsLinkLocalUnicast() {
			taken = append(taken, fmt.Sprint("default via ", r.GW))
		}
	}
	return taken
}

// If the bridge is the gateway, no container receives router advertisements of another one, also of
// another network on the bridge. On a bridge that is not a gateway they pass.
func TestKernelBridgeRouterAdvertisements(t *testing.T) {
	ipam := `"ipam":{"type":"host-local","dataDir":"$DIR","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]]}`
	for name, tt := range map[string]struct {
		keys  string
		takes bool
	}{
		"gateway":                 {`"isGateway":true,` + ipam, false},
		"gateway with masquerade": {`"isGateway":true,"ipMasq":true,"macspoofchk":true,` + ipam, false},
		"IPv4 alone":              {`"isGateway":true,"ipam":{"type":"host-local","dataDir":"$DIR","subnet":"10.1.0.0/24"}`, false},
		"no gateway":              {ipam, true},
	} {
		for how, send := range map[string]func(t *testing.T, p applettest.Container){
			"plain":            func(t *testing.T, p applettest.Container) { advertise(t, p, false) },
			"behind options":   func(t *testing.T, p applettest.Container) { advertise(t, p, true) },
			"in VLAN 0":        func(t *testing.T, p applettest.Container) { advertise(t, p, false, unix.ETH_P_8021Q) },
			"in VLAN 0, twice": func(t *testing.T, p applettest.Container) { advertise(t, p, false, unix.ETH_P_8021Q, unix.ETH_P_8021Q) },
			"in VLAN 0, QinQ": func(t *testing.T, p applettest.Container) {
				advertise(t, p, false, unix.ETH_P_8021AD, unix.ETH_P_8021Q)
			},
			"in VLAN 0, twice S": func(t *testing.T, p applettest.Container) {
				advertise(t, p, true, unix.ETH_P_8021AD, unix.ETH_P_8021AD)
			},
			"in VLAN 0, thrice": func(t *testing.T, p applettest.Container) {
				advertise(t, p, false, unix.ETH_P_8021Q, unix.ETH_P_8021AD, unix.ETH_P_8021Q)
			},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				h := applettest.NewHost(t)
				one, two := h.Container("one"), h.Container("two")
				before := h.Snapshot(one)
				conf := `{"cniVersion":"1.1.0","name":"demo","type":"bridge","bridge":"br0",` + tt.keys + `}`
				result := h.Must(spec.Add, "bridge", conf, one)
				h.Must(spec.Add, "bridge", conf, two)
				h.Listen(two.NS, two.ID)
				if v, err := two.NS.Sysctl("net/ipv6/conf/eth0/accept_ra"); err != nil || v != "1" {
					t.Fatalf("accept_ra is %q, %v", v, err)
				}
				if who := h.Who(one.NS, "10.1.0.3", applettest.Timeout); who != "two" {
					t.Fatalf("%q answers for the second container", who)
				}
				send(t, one)
				if tt.takes {
					kerneltest.Eventually(t, "advertisement taken", func() error {
						send(t, one)
						if taken := acceptedFrom(t, two); len(taken) != 2 {
							return fmt.Errorf("the advertisement is not a good: %q", taken)
						}
						return nil
					})
				} else if who := h.Who(one.NS, "10.1.0.3", applettest.Timeout); who != "two" { // later packets arrived
					t.Errorf("%q answers for the second container", who)
				} else if taken := acceptedFrom(t, two); taken != nil {
					t.Errorf("taken from a neighbour's router advertisement: %q", taken)
				}
				h.Must(spec.Check, "bridge", applettest.Prev(conf, result), one)
				h.Must(spec.Del, "bridge", conf, two)
				h.Must(spec.Del, "bridge", conf, one)
				h.Must(spec.Add, "bridge", conf, one)
				gc := strings.Replace(conf, `"name"`, `"cni.dev/valid-attachments":[],"name"`, 1)
				h.Must(spec.GC, "bridge", gc, applettest.Container{})
				h.Must(spec.Del, "bridge", conf, one)
				if after := h.Snapshot(one); strings.Contains(after, "demo/one") {
					t.Errorf("left behind:\n%s", kerneltest.Diff(before, after))
				}
			})
		}
	}
}

// Without nf_tables for family bridge, or without nf_tables, a bridge can be a gateway; ADD warns.
func TestKernelBridgeGatewayWithoutNftables(t *testing.T) {
	h := applettest.NewHost(t)
	p := h.Container("ctr")
	var warned bytes.Buffer
	h.Stderr = &warned
	fault.Hook = func(what string) error {
		if what == "nft batch" {
			return unix.EOPNOTSUPP
		}
		return nil
	}
	defer func() { fault.Hook = nil }()
	conf := strings.Replace(applettest.GatewayConf, `"ipMasq":true,`, "", 1)
	h.Must(spec.Check, "bridge", applettest.Prev(conf, h.Must(spec.Add, "bridge", conf, p)), p)
	if !strings.Contains(warned.String(), "router advertisements") {
		t.Errorf("no warning: %s", &warned)
	}
	h.Must(spec.Del, "bridge", conf, p)
}
