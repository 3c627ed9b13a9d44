package cniexec

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"cnibox/applets/cniexec/sandbox"
	"cnibox/applets/record"
	"cnibox/chain"
	"cnibox/internal/disk"
	"cnibox/internal/netns"
	"cnibox/rtnl"
)

// defaultNetwork is the network that exists when nothing is configured. Any configuration disables
// it.
const defaultNetwork = "cnibox"

// subnets are those of the default network. They are stored in a file, since running containers
// keep their addresses when the host's routes change.
type subnets struct {
	IPv4 netip.Prefix `json:"ipv4"`
	IPv6 netip.Prefix `json:"ipv6"` // unique local; used if the host has IPv6
}

// subnetsFile is the name of that file, in the cache's directory cnibox.
const subnetsFile = "default-network.json"

// embedded returns the default network, with a warning. It depends on whether the host has IPv6.
func (c *call) embedded() (*chain.List, error) {
	s, err := c.subnets()
	if err != nil {
		return nil, fmt.Errorf("default network: %w", err)
	}
	v6 := hostHasIPv6()
	l, err := chain.Parse(embeddedConf(s, v6, filepath.Join(c.runner.Cache.Dir, "networks"), sandbox.ResolvConf()))
	if err != nil {
		return nil, fmt.Errorf("default network: %w", err)
	}
	ranges := s.IPv4.String()
	if v6 {
		ranges += " and " + s.IPv6.String()
	}
	c.runner.Warn("no configuration in %s: using the embedded network %q (%s)", c.confDir, defaultNetwork, ranges)
	return l, nil
}

// embeddedConf returns the configuration list of the default network. Its leases are stored in the
// runtime's own cache, apart from those of other runtimes. Its capabilities are those that the
// flags and CAP_ARGS of cni-exec can use.
func embeddedConf(s subnets, v6 bool, dataDir, resolv string) []byte {
	type subnet struct {
		Subnet netip.Prefix `json:"subnet"`
	}
	ranges := [][]subnet{{{s.IPv4}}}
	if v6 {
		ranges = append(ranges, []subnet{{s.IPv6}})
	}
	ipam := map[string]any{"type": "host-local", "dataDir": dataDir, "ranges": ranges}
	if resolv != "" {
		ipam["resolvConf"] = resolv
	}
	doc, _ := json.Marshal(map[string]any{ // strings, bools and prefixes cannot fail
		"cniVersion": "1.1.0", "name": defaultNetwork, "loadOnlyInlinedPlugins": true,
		"plugins": []any{
			map[string]any{
				"type": "bridge", "bridge": "cnibox0", "isGateway": true, "isDefaultGateway": true,
				"ipMasq": true, "hairpinMode": true, "promiscMode": false, "ipam": ipam,
				"capabilities": map[string]bool{"ips": true, "mac": true},
			},
			map[string]any{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}},
			map[string]any{"type": "tuning"},
		},
	})
	return doc
}

// subnets returns the stored subnets, or chooses and stores some. If two processes choose at the
// same time, both use the choice of the first.
func (c *call) subnets() (s subnets, err error) {
	dir := filepath.Join(c.runner.Cache.Dir, "cnibox")
	file := filepath.Join(dir, subnetsFile)
	if s, err = readSubnets(file); !errors.Is(err, os.ErrNotExist) {
		return s, err
	}
	used, err := usedPrefixes()
	if err != nil {
		return s, err
	}
	if s, err = chooseSubnets(used); err != nil {
		return s, err
	}
	doc, err := json.Marshal(s)
	if err != nil {
		return s, err
	}
	// there is no lock, so each process has its own temporary file
	err = disk.Replace(file, filepath.Join(dir, ".new-"+sandbox.RandomHex()), doc, disk.New|disk.Durable)
	if err != nil && !errors.Is(err, os.ErrExist) {
		return s, err
	}
	return readSubnets(file)
}

// readSubnets reads the file; an invalid file is an error, since its subnets may be in use. The
// error is os.ErrNotExist before any were chosen.
func readSubnets(file string) (s subnets, err error) {
	doc, err := disk.Read(file, unix.O_NOFOLLOW, record.MaxSize)
	if err != nil {
		return s, err
	}
	err = json.Unmarshal(doc, &s)
	if err == nil && (!s.IPv4.IsValid() || !s.IPv4.Addr().Is4() || !s.IPv6.IsValid() || !s.IPv6.Addr().Is6()) {
		err = errors.New("a subnet is missing or of the wrong family")
	}
	if err != nil {
		return s, fmt.Errorf("%s: %w (delete it to choose anew)", file, err)
	}
	return s, nil
}

// candidates are private ranges (RFC 1918, RFC 6598) in the order in which their /24s are tried:
// first those that are not a common default.
const candidates = "10.208.0.0/12 172.24.0.0/13 192.168.128.0/17 10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 100.64.0.0/10"

// chooseSubnets returns the first /24 that does not overlap a used prefix, and a random unique
// local /64 (RFC 4193). The order is fixed, so hosts with the same routes choose the same /24. A
// host that routes all private ranges is an error.
func chooseSubnets(used []netip.Prefix) (s subnets, err error) {
	for text := range strings.FieldsSeq(candidates) {
		block := netip.MustParsePrefix(text)
		for p := netip.PrefixFrom(block.Addr(), 24); block.Contains(p.Addr()); p = next24(p) {
			if overlap(p, used) {
				continue
			}
			s.IPv4 = p
			s.IPv6, err = chooseIPv6(used)
			return s, err
		}
	}
	return s, errors.New("every private IPv4 subnet overlaps a route or an address of this host")
}

// chooseIPv6 returns a /64 with 40 random bits after fd and subnet 0: RFC 4193, section 3.2.
func chooseIPv6(used []netip.Prefix) (netip.Prefix, error) {
	for {
		var a [16]byte
		binary.BigEndian.PutUint64(a[:], 0xfd<<56|rand.Uint64()>>24<<16) // fdxx:xxxx:xxxx::
		if p := netip.PrefixFrom(netip.AddrFrom16(a), 64); !overlap(p, used) {
			return p, nil
		}
	}
}

// next24 returns the /24 after p; after 255.255.255.0 it is 0.0.0.0.
func next24(p netip.Prefix) netip.Prefix {
	a := p.Addr().As4()
	binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(a[:])+1<<8)
	return netip.PrefixFrom(netip.AddrFrom4(a), 24)
}

// overlap ignores prefixes shorter than /4: default routes and the halves that VPNs make of them.
func overlap(p netip.Prefix, used []netip.Prefix) bool {
	const shortest = 4 // bits
	for _, u := range used {
		if u.Bits() >= shortest && u.Overlaps(p) {
			return true
		}
	}
	return false
}

// usedPrefixes returns the addresses of all links, and the routes of all tables to which a rule
// leads. Unreachable and blackhole routes count too: they reserve a prefix.
func usedPrefixes() ([]netip.Prefix, error) {
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

// hostHasIPv6 reports whether the kernel has IPv6 and new links may use it. A new link gets the
// setting of "default".
func hostHasIPv6() bool {
	ns, err := netns.Current()
	if err != nil {
		return false
	}
	defer ns.Close()
	for _, key := range []string{"net/ipv6/conf/all/disable_ipv6", "net/ipv6/conf/default/disable_ipv6"} {
		if v, err := ns.Sysctl(key); err != nil || strings.TrimSpace(v) != "0" {
			return false
		}
	}
	return true
}
