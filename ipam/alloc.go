package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/spec"
)

// scanAfter is the number of taken addresses in a row after which the directory is listed, so that
// a long run of leases costs one listing and not a system call for each.
const scanAfter = 64

// Allocate leases one address from each range set to an attachment, or none: if it fails, it
// releases what it has leased. An attachment that has an address of the network is rejected. wanted
// is from [MatchRequested].
//
// Errors are a [spec.Error] of code 100 (the attachment has an address, or another has the
// requested one), 101 (a set is exhausted) or 5 (the disk).
//
// The store is locked for the whole call. The reference locks for each set. It releases by owner,
// and so also releases the addresses of earlier calls.
func Allocate(s *Store, sets []RangeSet, wanted []netip.Addr, o spec.Attachment) ([]spec.IP, error) {
	owned, err := s.marked(Lease{o.ContainerID, o.IfName})
	if err != nil {
		return nil, err
	}
	if len(owned) > 0 {
		return nil, duplicate(sets, owned, o)
	}
	t := allocation{s, o, nil}
	ips := make([]spec.IP, 0, len(sets))
	for i, set := range sets {
		a, err := t.allocate(i, set, wanted[i])
		if err != nil {
			t.undo()
			return nil, wrapRange(i, err)
		}
		ips = append(ips, set.ip(a))
	}
	return ips, nil
}

// duplicate rejects a second ADD for the first set that has one of the attachment's addresses.
// Unlike in the reference, an address outside all sets counts too: DEL, and so the undo of a second
// ADD, releases all addresses.
func duplicate(sets []RangeSet, owned []netip.Addr, o spec.Attachment) error {
	for i, set := range sets {
		if n := slices.IndexFunc(owned, set.Contains); n >= 0 {
			return wrapRange(i, spec.Duplicate(o, owned[n]))
		}
	}
	return wrapRange(0, spec.Duplicate(o, owned[0]))
}

// wrapRange adds the range to an error. An error with a code keeps it; one without a code is the
// disk's: 5.
func wrapRange(i int, err error) error {
	var coded *spec.Error
	if !errors.As(err, &coded) {
		err = spec.Errorf(spec.CodeIO, "%w", err)
	}
	return fmt.Errorf("failed to allocate for range %d: %w", i, err)
}

// MatchRequested returns the requested address of each set, the zero Addr for sets without one. A
// set serves one address; an address that no set can serve is a [spec.Error] of code 7.
//
// It changes no lease, so an impossible request is rejected before any address is leased. An
// address that is requested twice counts once.
func MatchRequested(sets []RangeSet, want []netip.Addr) ([]netip.Addr, error) {
	wanted := make([]netip.Addr, len(sets))
	var left strings.Builder
	for n, a := range want {
		a = a.Unmap()
		if slices.Contains(want[:n], a) {
			continue
		}
		i := slices.IndexFunc(sets, func(set RangeSet) bool { return set.Contains(a) })
		if i < 0 || wanted[i].IsValid() {
			left.WriteString(" " + a.String())
			continue
		}
		if sets[i].gateway(a) {
			return nil, spec.Errorf(spec.CodeConfig, "failed to allocate for range %d: requested ip %s is subnet's gateway", i, a)
		}
		wanted[i] = a
	}
	if left.Len() > 0 {
		ranges := make([]string, len(sets))
		for i, set := range sets {
			ranges[i] = set.String()
		}
		return nil, spec.Errorf(spec.CodeConfig, "failed to allocate all requested IPs:%s", left.String()).
			WithDetails("request at most one address of each range set: %s", strings.Join(ranges, " and "))
	}
	return wanted, nil
}

// allocation is one call of Allocate, under the store's lock.
type allocation struct {
	s     *Store
	o     spec.Attachment
	fresh []netip.Addr // reserved by this call
}

// undo frees what the call has leased. It reports what cannot be freed; the attachment's DEL frees
// that.
func (t *allocation) undo() {
	var left []netip.Addr
	for _, a := range t.fresh {
		if err := t.s.free(a); err != nil {
			t.s.o.Warn("release %s: %v", a, err)
			left = append(left, a)
		}
	}
	t.s.mark(Lease{t.o.ContainerID, t.o.IfName}, left...)
}

// allocate reserves the address of set i: the requested one, or the next free one. Errors have a
// code, except for those of the disk.
func (t *allocation) allocate(i int, set RangeSet, want netip.Addr) (netip.Addr, error) {
	if !want.IsValid() {
		a, err := t.firstFree(i, set)
		return t.record(i, a, err)
	}
	err := t.s.reserve(want, t.o, t.fresh)
	switch {
	case errors.Is(err, errOwn): // a lease of the reference, without a mark
		return want, spec.Duplicate(t.o, want)
	case errors.Is(err, ErrTaken):
		return want, spec.Errorf(spec.CodeBusy, "requested IP address %s is not available in range set %s", want, set).
			WithDetails("%v: request another address, or DEL the attachment that has it", err)
	}
	return t.record(i, want, err)
}

// record adds a new address. It is not an error if the last address cannot be written: the next
// search only takes longer.
func (t *allocation) record(i int, a netip.Addr, err error) (netip.Addr, error) {
	if err != nil {
		return a, err
	}
	t.fresh = append(t.fresh, a)
	if err := t.s.SetLast(i, a); err != nil {
		t.s.o.Warn("%v", err)
	}
	return a, nil
}

// firstFree reserves the first free address after the one reserved last, and wraps around at the
// end of the set.
//
// The content is written once, into a temporary file; each try is one link(2), which fails if the
// name exists. So no file of another lease is opened.
func (t *allocation) firstFree(i int, set RangeSet) (netip.Addr, error) {
	w, err := t.s.newTempFile(t.o)
	if err != nil {
		return netip.Addr{}, err
	}
	defer w.close()
	a := t.s.first(i, set)
	// Nil until a long run of leases was found.
	var taken map[netip.Addr]bool
	tries := 0
	for n, size := uint64(0), set.size(); n < size; n, a = n+1, set.after(a) {
		if set.gateway(a) || taken[a] {
			continue
		}
		if ok, err := t.s.publish(w, a, t.fresh); ok || err != nil {
			return a, err
		}
		if tries++; tries == scanAfter {
			if taken, err = t.s.taken(); err != nil {
				return a, err
			}
		}
	}
	return t.reclaim(i, set, w)
}

// first returns the address at which the search for a free one begins: the one after the last
// reserved one, or the set's first address.
func (s *Store) first(i int, set RangeSet) netip.Addr {
	if last, ok := s.Last(i); ok && set.Contains(last) {
		return set.after(last)
	}
	return set[0].Start
}

// taken returns the addresses that have a file of any type, including a directory or a socket,
// since no lease can be created there.
func (s *Store) taken() (map[netip.Addr]bool, error) {
	names, err := s.leases.names()
	if err != nil {
		return nil, err
	}
	taken := make(map[netip.Addr]bool, len(names))
	for _, name := range names {
		if a, ok := leaseName(name); ok {
			taken[a] = true
		}
	}
	return taken, nil
}

// reclaim reclaims an address of a full set: the lowest one whose lease has no readable owner, as
// after a killed process or a power cut; otherwise it frees the leases whose owners are gone. The
// reference never reclaims such addresses. The error has code 101.
func (t *allocation) reclaim(i int, set RangeSet, w *tempFile) (netip.Addr, error) {
	taken, err := t.s.taken()
	if err != nil {
		return netip.Addr{}, err
	}
	known, err := t.s.Leases()
	if err != nil {
		return netip.Addr{}, err
	}
	var dead []netip.Addr
	for a := range taken {
		if _, ok := known[a]; !ok && set.Contains(a) && !set.gateway(a) {
			dead = append(dead, a)
		}
	}
	slices.SortFunc(dead, netip.Addr.Compare)
	for _, a := range dead {
		if _, err := t.s.Holder(a); !errors.Is(err, errNoOwner) {
			continue
		} else if err := t.s.quarantine(a.String(), err); err != nil {
			t.s.o.Warn("%v", err)
			continue
		}
		if ok, err := t.s.publish(w, a, t.fresh); ok || err != nil {
			return a, err
		}
	}
	for _, a := range t.s.freeGone(i, set, known) {
		if ok, err := t.s.publish(w, a, t.fresh); ok || err != nil {
			return a, err
		}
	}
	return netip.Addr{}, spec.Errorf(spec.CodeExhausted, "no IP addresses available in range set: %s", set).
		WithDetails("every address is leased: remove containers, let the runtime collect garbage (cni-exec gc), or widen the range")
}

// Find returns an attachment's leased addresses as in a result: in the order of the sets, and
// addresses outside all sets last and without a gateway. GET returns them: an address whose range
// was removed from the configuration gets the prefix length of a host.
func Find(s *Store, sets []RangeSet, o spec.Attachment) ([]spec.IP, error) {
	owned, err := s.Owned(o, func() []RangeSet { return sets })
	if err != nil {
		return nil, err
	}
	var ips []spec.IP
	for _, set := range sets {
		owned = slices.DeleteFunc(owned, func(a netip.Addr) bool {
			contains := set.Contains(a)
			if contains {
				ips = append(ips, set.ip(a))
			}
			return contains
		})
	}
	for _, a := range owned {
		ips = append(ips, spec.IP{Address: netip.PrefixFrom(a, a.BitLen())})
	}
	return ips, nil
}
