// Package subnet chooses private subnets that a host does not use.
package subnet

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
)

// candidates are private ranges (RFC 1918, RFC 6598) in the order in which their /24s are tried:
// first those that are not a common default.
const candidates = "10.208.0.0/12 172.24.0.0/13 192.168.128.0/17 10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 100.64.0.0/10"

// IPv4 returns the first /24 that does not overlap a used prefix. The order is fixed, so hosts with
// the same routes choose the same. A host that routes all private ranges is an error.
func IPv4(used []netip.Prefix) (netip.Prefix, error) {
	for text := range strings.FieldsSeq(candidates) {
		block := netip.MustParsePrefix(text)
		for p := netip.PrefixFrom(block.Addr(), 24); block.Contains(p.Addr()); p = next24(p) {
			if _, taken := Overlap(p, used); !taken {
				return p, nil
			}
		}
	}
	return netip.Prefix{}, errors.New("every private IPv4 subnet overlaps a route or an address of this host")
}

// IPv6 returns a unique local /64 that does not overlap a used prefix, with 40 random bits after fd
// and subnet 0: RFC 4193, section 3.2.
func IPv6(used []netip.Prefix) netip.Prefix {
	for {
		var a [16]byte
		binary.BigEndian.PutUint64(a[:], 0xfd<<56|rand.Uint64()>>24<<16) // fdxx:xxxx:xxxx::
		p := netip.PrefixFrom(netip.AddrFrom16(a), 64)
		if _, taken := Overlap(p, used); !taken {
			return p
		}
	}
}

// next24 returns the /24 after p; after 255.255.255.0 it is 0.0.0.0.
func next24(p netip.Prefix) netip.Prefix {
	a := p.Addr().As4()
	binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(a[:])+1<<8)
	return netip.PrefixFrom(netip.AddrFrom4(a), 24)
}

// Overlap returns a used prefix that overlaps p. It ignores those shorter than /4: default routes and
// the halves that VPNs make of them.
func Overlap(p netip.Prefix, used []netip.Prefix) (other netip.Prefix, overlaps bool) {
	const shortest = 4 // bits
	for _, u := range used {
		if u.Bits() >= shortest && u.Overlaps(p) {
			return u, true
		}
	}
	return netip.Prefix{}, false
}

// Used returns the addresses of all links, and the routes of all tables to which a rule
// leads. Unreachable and blackhole routes count too: they reserve a prefix.
func Used() ([]netip.Prefix, error) {
	ns, err := netns.Current()
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	conn, err := rtnl.Dial(ns)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	all, err := conn.AllAddrs()
	if err != nil {
		return nil, err
	}
	var used []netip.Prefix
	for _, addrs := range all {
		for _, a := range addrs {
			used = append(used, a.Prefix)
		}
	}
	tables := map[int]bool{unix.RT_TABLE_MAIN: true}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		rules, err := conn.Rules(family)
		if err != nil {
			continue // a kernel without policy routing or IPv6 has none
		}
		for _, r := range rules {
			tables[r.Table] = true
		}
	}
	for table := range tables {
		routes, err := conn.Routes(rtnl.RouteFilter{Table: table})
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			used = append(used, r.Dst)
		}
	}
	return used, nil
}
