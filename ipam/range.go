package ipam

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/spec"
)

// A Range is a part of a subnet. Only Subnet is required; [Complete] sets the rest. An empty string
// means unset, since some runtimes send all members. In a complete range, addresses have no zone
// and are not IPv4-mapped.
type Range struct {
	Subnet  netip.Prefix `json:"subnet"`
	Start   netip.Addr   `json:"rangeStart"` // default, and the lowest: the first after the network address
	End     netip.Addr   `json:"rangeEnd"`   // default: the last, for IPv4 the last before the broadcast address
	Gateway netip.Addr   `json:"gateway"`    // default: the first after the network address; need not be in the subnet

	// Key is the configuration key of the range, for errors: ipam, or ipam.ranges[0][0].
	Key string `json:"-"`

	gateways []netip.Addr // of all sets, each once; only in the first range of a set
}

// A RangeSet is a list of ranges of one family, in the order of the search; an attachment gets one
// address from each set. The methods need a complete set.
type RangeSet []Range

// String returns START-END of each range, as in the reference's errors.
func (set RangeSet) String() string {
	var parts []string
	for _, r := range set {
		parts = append(parts, r.Start.String()+"-"+r.End.String())
	}
	return strings.Join(parts, ",")
}

// maxRanges is the largest number of ranges in all sets: each is compared with the others.
const maxRanges = 1000

// Complete checks the sets and sets the unset fields. Results before version 0.3.0 have one address
// of each family, so these versions allow one set of each.
//
// Errors are about the configuration: they have code 7 or none. Sets and ranges are changed in
// place, also on an error.
func Complete(sets []RangeSet, v spec.Version) error {
	if len(sets) == 0 {
		return spec.Errorf(spec.CodeConfig, "no IP ranges specified").WithDetails(`set "ipam.subnet" or "ipam.ranges"`).AtKey("ipam")
	}
	all := 0
	for _, set := range sets {
		all += len(set)
	}
	if all > maxRanges || len(sets) > maxRanges {
		return spec.Errorf(spec.CodeConfig, "%d IP ranges in %d sets, and at most %d are taken: write neighbouring ones as one", all, len(sets), maxRanges).AtKey("ipam.ranges")
	}
	families := map[bool]int{}
	for i, set := range sets {
		if err := set.complete(); err != nil {
			return fmt.Errorf("invalid range set %d: %w", i, err)
		}
		is4 := set[0].Subnet.Addr().Is4()
		if families[is4]++; families[is4] > 1 && !v.AtLeast(spec.V030) {
			return fmt.Errorf("CNI version %s does not support more than 1 address per family", v)
		}
		for j, other := range sets[:i] {
			if set.overlaps(other) {
				return fmt.Errorf("range set %d overlaps with %d", j, i)
			}
		}
	}
	return excludeGateways(sets)
}

// excludeGateways gives each set the gateways of all sets, so that no container gets one. The
// reference excludes only those of the same set.
func excludeGateways(sets []RangeSet) error {
	var gateways []netip.Addr
	for _, set := range sets {
		for _, r := range set {
			if !slices.Contains(gateways, r.Gateway) {
				gateways = append(gateways, r.Gateway)
			}
		}
	}
	for i, set := range sets {
		if set[0].gateways = gateways; set.Usable() == 0 {
			return fmt.Errorf("invalid range set %d: %s has no address but gateways", i, set)
		}
	}
	return nil
}

// complete checks that the ranges of a set are of one family and do not overlap. An address of two
// ranges would be counted twice.
func (set RangeSet) complete() error {
	if len(set) == 0 {
		return errors.New("empty range set")
	}
	for i := range set {
		if err := set[i].complete(); err != nil {
			return err
		}
		if set[i].Subnet.Addr().Is4() != set[0].Subnet.Addr().Is4() {
			return errors.New("mixed address families")
		}
		for j := range set[:i] {
			if set[j : j+1].overlaps(set[i : i+1]) {
				return fmt.Errorf("subnets %s and %s overlap", set[j:j+1], set[i:i+1])
			}
		}
	}
	return nil
}

// complete checks a range and sets the unset fields. A subnet needs two addresses besides the
// network and the broadcast address, one for the gateway: /31 and /127, whose two addresses hosts may
// have (RFC 3021, RFC 6164), are too small as in the reference. As there, the gateway may be
// outside the subnet. Unlike there, a range with the network or the broadcast address is cut: no
// interface can use these, and the network's own IPv6 address is that of all its routers (RFC 4291, 2.6.1).
func (r *Range) complete() error {
	addr := r.Subnet.Addr()
	switch {
	case !r.Subnet.IsValid():
		return spec.KeyErrorf(r.Key, "%q is missing", r.key("subnet"))
	case addr.Is4In6():
		return spec.Errorf(spec.CodeConfig, "network %s: write IPv4 addresses without ::ffff:", r.Subnet).AtKey(r.key("subnet"))
	case addr.BitLen()-r.Subnet.Bits() < 2:
		return spec.Errorf(spec.CodeConfig, "Network %s too small to allocate from", r.Subnet).
			WithDetails("%q needs a prefix length of /%d or less", r.key("subnet"), addr.BitLen()-2).AtKey(r.key("subnet"))
	case r.Subnet.Masked() != r.Subnet:
		return spec.Errorf(spec.CodeConfig, "Network has host bits set. For a subnet mask of length %d the network address is %s",
			r.Subnet.Bits(), r.Subnet.Masked().Addr()).WithDetails("%q is %s: write %s", r.key("subnet"), r.Subnet, r.Subnet.Masked()).AtKey(r.key("subnet"))
	case addr.IsMulticast() || addr.IsLoopback():
		return spec.Errorf(spec.CodeConfig, "network %s has no address for an interface", r.Subnet).AtKey(r.key("subnet"))
	}
	for key, a := range map[string]*netip.Addr{"rangeStart": &r.Start, "rangeEnd": &r.End, "gateway": &r.Gateway} {
		*a = a.Unmap()
		if a.Zone() != "" {
			return spec.Errorf(spec.CodeConfig, "%q: address %s has a zone", r.key(key), a).AtKey(r.key(key))
		}
	}
	first, last := addr.Next(), lastAddr(r.Subnet)
	var broadcast netip.Addr // IPv6 has none
	if addr.Is4() {
		last, broadcast = last.Prev(), last
	}
	configured := r.Start.IsValid() && r.End.IsValid()
	setDefault(&r.Gateway, first)
	setDefault(&r.Start, first)
	setDefault(&r.End, last)
	switch {
	case !r.Subnet.Contains(r.Start):
		return spec.Errorf(spec.CodeConfig, "RangeStart %s not in network %s", r.Start, r.Subnet).
			WithDetails("%q must be from %s to %s", r.key("rangeStart"), first, last).AtKey(r.key("rangeStart"))
	case !r.Subnet.Contains(r.End):
		return spec.Errorf(spec.CodeConfig, "RangeEnd %s not in network %s", r.End, r.Subnet).
			WithDetails("%q must be from %s to %s", r.key("rangeEnd"), first, last).AtKey(r.key("rangeEnd"))
	case r.Gateway.Is4() != addr.Is4() || r.Gateway.IsMulticast() || r.Gateway == broadcast:
		return spec.Errorf(spec.CodeConfig, "gateway %s cannot be one of network %s", r.Gateway, r.Subnet).
			WithDetails("%q must be the address of a host, as %s", r.key("gateway"), first).AtKey(r.key("gateway"))
	}
	start, end := r.Start, r.End
	if configured && end.Less(start) { // for the reference, RangeStart is outside the network then
		return spec.Errorf(spec.CodeConfig, "RangeStart %s is after RangeEnd %s", start, end).
			WithDetails("exchange the values of %q and %q", r.key("rangeStart"), r.key("rangeEnd")).AtKey(r.key("rangeStart"))
	}
	if r.Start == addr {
		r.Start = first
	}
	if r.End == broadcast {
		r.End = last
	}
	if r.End.Less(r.Start) {
		return spec.Errorf(spec.CodeConfig, "no container can have an address of %s-%s", start, end).
			WithDetails("%q must be from %s to %s, and %q not before it", r.key("rangeStart"), first, last, r.key("rangeEnd")).AtKey(r.key("rangeStart"))
	}
	return nil
}

// key returns the configuration key of a member of the range.
func (r *Range) key(member string) string { return strings.TrimPrefix(r.Key+"."+member, ".") }

// setDefault sets an unset address.
func setDefault(a *netip.Addr, value netip.Addr) {
	if !a.IsValid() {
		*a = value
	}
}

// lastAddr returns the address of a subnet with all host bits set: for IPv4 the broadcast address.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for bit := p.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// holding returns the index of the range that contains an address; -1: no range does.
func (set RangeSet) holding(a netip.Addr) int {
	for i, r := range set {
		if r.Start.BitLen() == a.BitLen() && r.Start.Compare(a) <= 0 && a.Compare(r.End) <= 0 {
			return i
		}
	}
	return -1
}

// Contains reports whether the address is in one of the ranges.
func (set RangeSet) Contains(a netip.Addr) bool { return set.holding(a) >= 0 }

// overlaps reports whether an address is in both sets. It compares only starts and ends.
func (set RangeSet) overlaps(other RangeSet) bool {
	for _, r := range set {
		for _, o := range other {
			if r.Start.BitLen() == o.Start.BitLen() && r.Start.Compare(o.End) <= 0 && o.Start.Compare(r.End) <= 0 {
				return true
			}
		}
	}
	return false
}

// gateway reports whether the address is the gateway of a range of any set. Gateways are never
// leased.
func (set RangeSet) gateway(a netip.Addr) bool { return slices.Contains(set[0].gateways, a) }

// size returns the number of addresses, including gateways; 2^64-1: at least so many, since an IPv6
// /64 has more than can be counted.
func (set RangeSet) size() uint64 {
	sum := uint64(0)
	for _, r := range set {
		n := distance(r.Start, r.End)
		if n >= math.MaxUint64-1-sum {
			return math.MaxUint64
		}
		sum += n + 1
	}
	return sum
}

// Usable returns how many addresses can be leased: all except the gateways within the ranges;
// 2^64-1: at least so many.
func (set RangeSet) Usable() uint64 {
	n := set.size()
	for _, gw := range set[0].gateways {
		if n != math.MaxUint64 && set.Contains(gw) {
			n--
		}
	}
	return n
}

// distance returns b - a; 2^64-1: at least so much. b is not before a, and both are of one family.
func distance(a, b netip.Addr) uint64 {
	x, y := a.As16(), b.As16()
	be := binary.BigEndian
	low, borrow := bits.Sub64(be.Uint64(y[8:]), be.Uint64(x[8:]), 0)
	high, _ := bits.Sub64(be.Uint64(y[:8]), be.Uint64(x[:8]), borrow)
	if high > 0 {
		return math.MaxUint64
	}
	return low
}

// after returns the address to try after a: the next one of its range, or the start of the next
// range, or of the first range after the last. An address outside all ranges is followed by the
// start of the first range.
func (set RangeSet) after(a netip.Addr) netip.Addr {
	i := set.holding(a)
	if i >= 0 && a != set[i].End {
		return a.Next()
	}
	return set[(i+1)%len(set)].Start
}

// ip returns an address of the set as in a result. The address must be in the set.
func (set RangeSet) ip(a netip.Addr) spec.IP {
	r := set[set.holding(a)]
	return spec.IP{Address: netip.PrefixFrom(a, r.Subnet.Bits()), Gateway: r.Gateway}
}
