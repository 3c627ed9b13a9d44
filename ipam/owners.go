package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/spec"
)

// Owned returns the addresses of an attachment, lowest first. If it has no mark, all leases are
// read. One that no lease names has those of its container without an interface that are the only
// one of their range set, or outside all sets of their family: of several nobody can say which are
// its. sets is called for these only; nil: there are no sets.
func (s *Store) Owned(o spec.Attachment, sets func() []RangeSet) ([]netip.Addr, error) {
	_, found, err := s.owned(o, sets)
	return found, err
}

// owned is [Store.Owned]; l is the owner in the lease files.
func (s *Store) owned(o spec.Attachment, sets func() []RangeSet) (l Lease, found []netip.Addr, err error) {
	l = Lease{o.ContainerID, o.IfName}
	if err := s.load(); err != nil {
		return l, nil, err
	}
	if s.x.dir.fd >= 0 {
		if found, err := s.marked(l); err != nil || len(found) > 0 {
			return l, found, err
		}
	}
	found, unnamed, err := s.search(l)
	if err != nil || len(found) > 0 || len(unnamed) == 0 {
		return l, found, err
	}
	var known []RangeSet
	if sets != nil {
		known = sets()
	}
	return Lease{o.ContainerID, ""}, alone(unnamed, known), nil
}

// alone returns the addresses without another one in the same range set, or outside all sets in the same family.
func alone(addrs []netip.Addr, sets []RangeSet) []netip.Addr {
	place := func(a netip.Addr) int {
		if i := slices.IndexFunc(sets, func(set RangeSet) bool { return set.Contains(a) }); i >= 0 {
			return i
		}
		return -a.BitLen()
	}
	count := map[int]int{}
	for _, a := range addrs {
		count[place(a)]++
	}
	return slices.DeleteFunc(addrs, func(a netip.Addr) bool { return count[place(a)] > 1 })
}

// Holder returns the owner of an address from its file, not from a mark. The error is
// os.ErrNotExist if there is no lease, and errNoOwner if the file has no readable owner.
func (s *Store) Holder(a netip.Addr) (Lease, error) {
	l, _, err := s.leases.lease(a)
	return l, err
}

// Reserve leases an address to an attachment; it is not an error if the attachment has the address.
// The error is [ErrTaken], with the owner's name, if another attachment has it. The address may be
// outside all ranges. A file of its name without an owner is quarantined.
//
// The mark gets all leases of the attachment, also those that the reference made.
func (s *Store) Reserve(a netip.Addr, o spec.Attachment) error {
	owned, err := s.Owned(o, nil)
	if err != nil || slices.Contains(owned, a) {
		return err
	}
	err = s.reserve(a, o, owned)
	if errors.Is(err, errOwn) { // a lease of the reference, in the mark now
		err = nil
	}
	return err
}

// reserve leases an address to an attachment that has the other addresses. The error is errOwn if
// it has this address.
func (s *Store) reserve(a netip.Addr, o spec.Attachment, others []netip.Addr) error {
	w, err := s.newTempFile(o)
	if err != nil {
		return err
	}
	defer w.close()
	for range 2 {
		if ok, err := s.publish(w, a, others); ok || err != nil {
			return err
		}
		holder, err := s.Holder(a)
		switch {
		case err == nil && holder.Owns(o):
			return errOwn
		case err == nil:
			s.mark(w.lease, others...)
			return fmt.Errorf("%w by %s", ErrTaken, holder)
		case errors.Is(err, errNoOwner):
			if err := s.quarantine(a.String(), err); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("lease of %s: %w", a, unix.EBUSY)
}

// newTempFile writes a lease of the attachment without an address. The caller closes it. A
// read-only store returns an error.
func (s *Store) newTempFile(o spec.Attachment) (*tempFile, error) {
	if err := s.load(); err != nil {
		return nil, err
	}
	if s.readOnly {
		return nil, errView
	}
	return s.leases.newTempFile(Lease{o.ContainerID, o.IfName}, s.o.KeepAcrossBoots)
}

// publish makes a temporary file the lease of an address; false: the address is taken. It first
// writes the mark of the owner, which has the other addresses already. If the name cannot be
// synced, it is removed.
func (s *Store) publish(w *tempFile, a netip.Addr, others []netip.Addr) (bool, error) {
	s.mark(w.lease, slices.Concat(others, []netip.Addr{a})...)
	ok, err := s.leases.link(w, a, s.o.KeepAcrossBoots)
	if !ok || !s.o.KeepAcrossBoots {
		return ok, err
	}
	if err = s.leases.sync(); err != nil {
		err = errors.Join(err, s.free(a))
	}
	return err == nil, err
}

// Release frees the addresses of an attachment and returns them; it is not an error if there are
// none. It continues after a failure. It needs no address and, but for leases without an interface,
// no range, so it works after the configuration has changed. sets is for [Store.Owned].
func (s *Store) Release(o spec.Attachment, sets func() []RangeSet) (freed []netip.Addr, err error) {
	l, owned, err := s.owned(o, sets)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, a := range owned {
		if err := s.free(a); err != nil {
			errs = append(errs, err)
			continue
		}
		freed = append(freed, a)
	}
	switch {
	case errs != nil:
	case l.IfName == "":
		s.remark(l)
	default:
		s.mark(l)
	}
	return freed, errors.Join(errs...)
}

// free removes the lease of an address; it may be gone already. The caller updates the mark of its
// owner.
func (s *Store) free(a netip.Addr) error {
	if s.readOnly {
		return errView
	}
	if err := s.leases.remove(a.String()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// DeleteStale frees the leases whose owner is not valid and quarantines those without a readable
// owner, for GC. For a lease without an interface, valid gets an empty interface name. It continues
// after a failure.
//
// It reads every lease and makes the marks match the remaining leases.
func (s *Store) DeleteStale(valid func(spec.Attachment) bool) error {
	if err := s.load(); err != nil {
		return err
	}
	if s.readOnly {
		return errView
	}
	names, err := s.leases.names()
	if err != nil {
		return err
	}
	var errs []error
	left := map[Lease][]netip.Addr{}
	for _, name := range names {
		a, ok := leaseName(name)
		if !ok {
			continue
		}
		l, _, err := s.leases.lease(a)
		switch {
		case errors.Is(err, os.ErrNotExist): // deleted meanwhile
		case err != nil:
			errs = append(errs, s.quarantine(name, err))
		case valid(spec.Attachment{Network: s.network, ContainerID: l.ContainerID, IfName: l.IfName}):
			left[l] = append(left[l], a)
		default:
			if err := s.leases.remove(name); err != nil {
				errs = append(errs, err)
				left[l] = append(left[l], a)
			}
		}
	}
	if s.x.dir.fd >= 0 {
		if err := s.x.dir.update(left); err != nil {
			s.abandonIndex(err)
		}
	}
	return errors.Join(errs...)
}

// Last returns the address of a range set that was reserved last, at which the search for the next
// begins; false: it cannot be read.
func (s *Store) Last(set int) (netip.Addr, bool) { return s.leases.last(set) }

// SetLast records the address for Last; other tools read it too.
func (s *Store) SetLast(set int, a netip.Addr) error {
	if s.readOnly {
		return errView
	}
	return s.leases.setLast(set, a)
}

// quarantine moves a file that has a lease's name but is not a lease, whatever its type, to a
// directory that this package never reads or empties, and warns with the new path. The new name
// contains the time, so that it replaces no file.
func (s *Store) quarantine(name string, why error) error {
	ownDir, err := s.ownDirectory(true)
	if err != nil {
		return err
	}
	dir, err := ownDir.sub(quarantineDir, true)
	if err != nil {
		return err
	}
	defer dir.close()
	to := name + "." + strconv.FormatInt(time.Now().UnixNano(), 36)
	err = s.leases.change("quarantine", name, func() error {
		return unix.Renameat2(s.leases.fd, name, dir.fd, to, unix.RENAME_NOREPLACE)
	})
	if err != nil {
		return err
	}
	s.o.Warn("%v: moved to %s", why, filepath.Join(dir.path, to))
	return nil
}

// ownDirectory opens .cnibox/NETWORK, which stays open as long as the store.
func (s *Store) ownDirectory(create bool) (directory, error) {
	if s.ownDir.fd >= 0 {
		return s.ownDir, nil
	}
	all, err := s.data.sub(ownDir, create)
	if err != nil {
		return all, err
	}
	defer all.close()
	s.ownDir, err = all.sub(s.network, create)
	return s.ownDir, err
}
