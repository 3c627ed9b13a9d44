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

	"cnibox/spec"
)

// Owned returns the addresses of an attachment, lowest first; without a mark from all leases.
func (s *Store) Owned(o spec.Attachment) ([]netip.Addr, error) {
	owner := Lease{o.ContainerID, o.IfName}
	found, err := s.marked(owner)
	if err == nil && len(found) == 0 && s.x.dir.fd >= 0 {
		found, err = s.search(owner)
	}
	return found, err
}

// Holder returns the owner of an address, from its file and not from a mark. Errors are
// os.ErrNotExist if there is no lease, and errNoOwner if no owner can be read in it.
func (s *Store) Holder(a netip.Addr) (Lease, error) {
	l, _, err := s.leases.lease(a)
	return l, err
}

// Reserve leases an address to an attachment; that it has it already is not an error. The error
// is [ErrTaken], with the owner's name, if another attachment has it. The address need not be
// of any range. A file of its name that has no owner is quarantined.
//
// The mark gets all leases of the attachment, also those that the reference made.
func (s *Store) Reserve(a netip.Addr, o spec.Attachment) error {
	owned, err := s.Owned(o)
	if err != nil || slices.Contains(owned, a) {
		return err
	}
	err = s.reserve(a, o, owned)
	if errors.Is(err, errOwn) { // from the reference, and in the mark now
		err = nil
	}
	return err
}

// reserve leases an address to an attachment that has the others. The error is errOwn if it has this
// one.
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

// newTempFile writes a lease of the attachment that has no address yet.
// The caller closes it. On a view it is an error.
func (s *Store) newTempFile(o spec.Attachment) (*tempFile, error) {
	if err := s.load(); err != nil {
		return nil, err
	}
	if s.readOnly {
		return nil, errView
	}
	return s.leases.newTempFile(Lease{o.ContainerID, o.IfName}, s.o.KeepAcrossBoots)
}

// publish makes a temporary file the lease of an address; false: that is taken. The mark of the owner,
// which has the others already, is written first. If the name cannot be synced it is removed.
func (s *Store) publish(w *tempFile, a netip.Addr, others []netip.Addr) (bool, error) {
	s.mark(w.lease, slices.Concat(others, []netip.Addr{a})...)
	ok, err := s.leases.publish(w, a, s.o.KeepAcrossBoots)
	if !ok || !s.o.KeepAcrossBoots {
		return ok, err
	}
	if err = s.leases.sync(); err != nil {
		err = errors.Join(err, s.free(a))
	}
	return err == nil, err
}

// Release frees the addresses of an attachment and returns them; none is no
// error. It goes on past the first failure.
// It needs no range and no address, so it works after the configuration has changed.
func (s *Store) Release(o spec.Attachment) (freed []netip.Addr, err error) {
	owned, err := s.Owned(o)
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
	if errs == nil {
		s.mark(Lease{o.ContainerID, o.IfName})
	}
	return freed, errors.Join(errs...)
}

// free removes the lease of an address, which may be gone. The mark of its owner is the caller's.
func (s *Store) free(a netip.Addr) error {
	if s.readOnly {
		return errView
	}
	if err := s.leases.remove(a.String()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// DeleteStale frees the leases whose owner is not valid and quarantines those without a
// readable owner, for GC. A lease without an interface is passed to valid with an empty one.
// It goes on past the first failure.
//
// It reads every lease, and makes the marks those of what is left.
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

// Last returns the address of a range set that was reserved last, where the
// search for the next begins; false: it cannot be read.
func (s *Store) Last(set int) (netip.Addr, bool) { return s.leases.last(set) }

// SetLast records the address for Last, also of other tools.
func (s *Store) SetLast(set int, a netip.Addr) error {
	if s.readOnly {
		return errView
	}
	return s.leases.setLast(set, a)
}

// quarantine moves what has the name of a lease and is none, whatever it is, to a directory
// that this package never reads or empties, and warns with the new path. The name gets the
// time, so that nothing there is replaced.
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

// ownDirectory opens .cnibox/NETWORK, which stays open with the store.
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
