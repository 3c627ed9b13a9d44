package ipam

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// The index finds the addresses of an owner, so that a DEL among 60,000 leases reads one
// of them and not all. It is a directory for each boot with a symbolic link for each owner,
// whose target lists the addresses:
//
//	.cnibox/demo/by-boot/0b7cb0a8-…/web:eth0 -> 10.1.0.2,fd00::2
//
// A symbolic link is made and read in one call each, and is never half written. The lease
// files decide: what the index says is compared with them. That it is complete is shown by
// the time of modification of the leases' directory, which each change of any user of the
// format updates: after its own changes a store sets it to [untouched]. If it is another,
// the leases are scanned and the index is corrected.
//
// An index that cannot be written is no error of a verb, since the leases can be scanned.

// untouched is 1999-12-31T12:00:00Z, which no clock shows any more, not even one that begins
// at 1970 or 2000 with each start, nor after rounding to the seconds of a file system.
var untouched = unix.Timespec{Sec: 946641600}

// maxTarget is PATH_MAX less the zero byte, include/uapi/linux/limits.h. An owner of more
// addresses than fit has the target many, which stands for a scan.
const (
	maxTarget = 4095
	many      = "many"
)

// errIndex is the error of a link that this program would not have made.
var errIndex = errors.New("damaged index")

// An index is the one of this boot.
type index struct {
	dir directory              // fd -1: it could not be written
	mem map[Lease][]netip.Addr // from a scan by this store; nil: it has not scanned
}

// An entry is a lease in the index.
type entry struct {
	owner Lease
	addr  netip.Addr
}

// linkName is the name of an owner's link. A slash is escaped, and the end of a long name
// replaced by a hash: of two owners with one name the leases decide.
func linkName(l Lease) string {
	name := escapeName(l.ContainerID) + ":" + escapeName(l.IfName)
	if len(name) <= unix.NAME_MAX {
		return name
	}
	h := fnv.New64a()
	h.Write([]byte(name))
	return fmt.Sprintf("%s%%%016x", name[:200], h.Sum64())
}

// escapeName writes as %XX what has a meaning in the name of a link.
func escapeName(s string) string {
	if !strings.ContainsAny(s, "%/:") {
		return s
	}
	return strings.NewReplacer("%", "%25", "/", "%2F", ":", "%3A").Replace(s)
}

// load makes the index ready: the directory of this boot if nothing changed since it was
// written, else a scan.
func (s *Store) load() error {
	if s.x != nil {
		return nil
	}
	dir, err := s.bootDirectory(false)
	if err == nil && s.isUntouched() {
		s.x = &index{dir: dir}
		return nil
	}
	dir.close()
	return s.rebuild()
}

// isUntouched reports whether the leases are as the last store has left them.
func (s *Store) isUntouched() bool {
	var st unix.Stat_t
	return unix.Fstat(s.leases.fd, &st) == nil && st.Mtim == untouched
}

// rebuild frees the leases of earlier boots and makes the index from all others.
func (s *Store) rebuild() error {
	s.dropIndex()
	expired := s.earlierBoots()
	var errs []error
	x := &index{dir: directory{fd: -1}, mem: map[Lease][]netip.Addr{}}
	err := s.scan(func(a netip.Addr, l Lease, st unix.Stat_t) error {
		if expired.has(a, l, st) {
			err := s.expire(a)
			if err == nil {
				return nil
			}
			errs = append(errs, err)
		}
		x.mem[l] = append(x.mem[l], a)
		return nil
	})
	if err != nil {
		return err
	}
	s.x = x
	switch err := errors.Join(errs...); {
	case err != nil:
		s.o.Warn("leases of network %s are kept across boots: %v", s.network, err)
	case !s.readOnly:
		s.writeIndex()
	}
	return nil
}

// scan reads all leases with a readable owner. Names that are no addresses are skipped, and
// leases that are deleted meanwhile. The order is the directory's.
func (s *Store) scan(each func(a netip.Addr, l Lease, st unix.Stat_t) error) error {
	names, err := s.leases.names()
	if err != nil {
		return err
	}
	for _, name := range names {
		a, ok := leaseName(name)
		if !ok {
			continue
		}
		l, st, err := s.leases.lease(a)
		if err != nil {
			continue // one without an owner stays until the address is needed
		}
		if err := each(a, l, st); err != nil {
			return err
		}
	}
	return nil
}

// writeIndex writes what the scan has found into the directory of this boot.
func (s *Store) writeIndex() {
	s.x.dir.close()
	var err error
	if s.x.dir, err = s.bootDirectory(true); err == nil {
		if err = s.touch(); err == nil {
			err = s.x.update()
		}
	}
	if err == nil {
		err = s.dropEarlierBoots()
	}
	if err != nil {
		s.o.Warn("index of the leases of network %s: %v", s.network, err)
		s.x.dir.close()
		s.x.dir = directory{fd: -1}
		return
	}
	s.changed = true // so that Close marks the leases as untouched
}

// touch updates the time of an untouched directory, so that an index that is written in
// part does not count as complete.
func (s *Store) touch() error {
	if !s.isUntouched() {
		return nil
	}
	return s.data.change("touch", s.network, func() error {
		now := unix.Timespec{Nsec: unix.UTIME_NOW}
		return unix.UtimesNanoAt(s.data.fd, s.network, []unix.Timespec{{Nsec: unix.UTIME_OMIT}, now}, unix.AT_SYMLINK_NOFOLLOW)
	})
}

// seal marks the leases as untouched since the index was written.
func (s *Store) seal() error {
	return s.data.change("seal", s.network, func() error {
		times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, untouched}
		return unix.UtimesNanoAt(s.data.fd, s.network, times, unix.AT_SYMLINK_NOFOLLOW)
	})
}

// update makes the links of the directory those of the scan.
func (x *index) update() error {
	names, err := x.dir.names()
	if err != nil {
		return err
	}
	surplus := make(map[string]bool, len(names))
	for _, name := range names {
		surplus[name] = true
	}
	for l, addrs := range x.mem {
		name := linkName(l)
		if surplus[name] {
			delete(surplus, name)
			if old, err := x.dir.target(name); err == nil && old == target(addrs) {
				continue
			}
		}
		if err := x.dir.setTarget(name, target(addrs)); err != nil {
			return err
		}
	}
	for name := range surplus {
		if err := x.dir.remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// find returns the addresses of an owner, which the caller verifies.
func (x *index) find(l Lease) ([]netip.Addr, error) {
	if x.mem != nil {
		return x.mem[l], nil
	}
	text, err := x.dir.target(linkName(l))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseTarget(text)
}

// set records the addresses of an owner; without addresses its link is removed.
func (x *index) set(l Lease, addrs []netip.Addr) error {
	if x.mem != nil {
		x.mem[l] = addrs
		if len(addrs) == 0 {
			delete(x.mem, l)
		}
	}
	switch {
	case x.dir.fd < 0:
		return nil
	case len(addrs) > 0:
		return x.dir.setTarget(linkName(l), target(addrs))
	}
	if err := x.dir.remove(linkName(l)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// entries returns all leases of the index, in no order.
func (x *index) entries() ([]netip.Addr, error) {
	var all []netip.Addr
	if x.mem != nil {
		for addrs := range maps.Values(x.mem) {
			all = append(all, addrs...)
		}
		return all, nil
	}
	names, err := x.dir.names()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		text, err := x.dir.target(name)
		if err != nil {
			return nil, err
		}
		addrs, err := parseTarget(text)
		if err != nil {
			return nil, err
		}
		all = append(all, addrs...)
	}
	return all, nil
}

// target is how a link lists addresses.
func target(addrs []netip.Addr) string {
	var b strings.Builder
	for i, a := range addrs {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(a.String())
	}
	if b.Len() > maxTarget {
		return many
	}
	return b.String()
}

// parseTarget is the reverse of target; errIndex: the leases have to be scanned.
func parseTarget(text string) (addrs []netip.Addr, err error) {
	for s := range strings.SplitSeq(text, ",") {
		a, ok := leaseName(s)
		if !ok {
			return nil, fmt.Errorf("%w: target %q", errIndex, text)
		}
		addrs = append(addrs, a)
	}
	return addrs, nil
}

// enter adds a lease to the index, forget removes one. An index that cannot be updated is
// abandoned; the lease files decide.
func (s *Store) enter(e entry) {
	had, err := s.x.find(e.owner)
	if err == nil && !slices.Contains(had, e.addr) {
		err = s.x.set(e.owner, append(slices.Clone(had), e.addr))
	}
	s.lost(err)
}

func (s *Store) forget(e entry) {
	had, err := s.x.find(e.owner)
	if err == nil && slices.Contains(had, e.addr) {
		err = s.x.set(e.owner, slices.DeleteFunc(slices.Clone(had), func(a netip.Addr) bool { return a == e.addr }))
	}
	s.lost(err)
}

// lost abandons an index that could not be changed: the leases are scanned, and the next
// store scans them too.
func (s *Store) lost(err error) {
	if err == nil {
		return
	}
	if !errors.Is(err, errIndex) {
		s.o.Warn("index of the leases of network %s: %v", s.network, err)
	}
	s.dropIndex()
	s.x = &index{dir: directory{fd: -1}, mem: map[Lease][]netip.Addr{}}
	err = s.scan(func(a netip.Addr, l Lease, _ unix.Stat_t) error {
		s.x.mem[l] = append(s.x.mem[l], a)
		return nil
	})
	if err != nil {
		s.o.Warn("leases of network %s: %v", s.network, err)
	}
}

// dropIndex closes the index; its directory stays.
func (s *Store) dropIndex() {
	if s.x != nil {
		s.x.dir.close()
		s.x = nil
	}
}
