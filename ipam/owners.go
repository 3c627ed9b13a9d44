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

// Owned returns the addresses of an attachment, lowest first. A lease without an
// interface counts when there is none with it.
// It is what releases of host-local up to 0.7 have left.
func (s *Store) Owned(o spec.Attachment) ([]netip.Addr, error) {
	if err := s.load(); err != nil {
		return nil, err
	}
	found, sound := s.lookup(o)
	// Once: an index that was just made from the files agrees with them.
	if !sound {
		if err := s.rebuild(); err != nil {
			return nil, err
		}
		found, _ = s.lookup(o)
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return found, nil
}

// lookup asks the index and verifies its answer; sound is false when the files
// say otherwise.
// Of a lease that it does not know it says nothing, which is why the directory's time has
// to change with every change by others.
func (s *Store) lookup(o spec.Attachment) (found []netip.Addr, sound bool) {
	for _, l := range []Lease{{o.ContainerID, o.IfName}, {ContainerID: o.ContainerID}} {
		addrs, err := s.x.find(l)
		if err != nil {
			return found, false
		}
		for _, a := range addrs {
			if real, _, err := s.leases.lease(a); err != nil || real != l {
				return found, false
			}
			found = append(found, a)
		}
		if len(found) > 0 {
			break
		}
	}
	return found, true
}

// Holder returns the owner of an address, from its file; os.ErrNotExist if
// there is no lease.
// It asks no index. errNoOwner is the error of a lease in which none can be read.
func (s *Store) Holder(a netip.Addr) (Lease, error) {
	l, _, err := s.leases.lease(a)
	return l, err
}

// Reserve leases an address to an attachment. It is [ErrTaken], with the owner's
// name, if another has it, and fine if the attachment has it already.
// The address need not be of any range. What stands in its place and has no owner is
// set aside, and then tried once more.
func (s *Store) Reserve(a netip.Addr, o spec.Attachment) error {
	w, err := s.draft(o)
	if err != nil {
		return err
	}
	defer w.close()
	for range 2 {
		if ok, err := s.publish(w, a); ok || err != nil {
			return err
		}
		holder, err := s.Holder(a)
		switch {
		case err == nil && holder.Owns(o):
			return s.adopt(a, o)
		case err == nil:
			return fmt.Errorf("%w by %s", ErrTaken, holder)
		case errors.Is(err, errNoOwner):
			if err := s.setAside(a.String(), err); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("lease of %s: %w", a, unix.EBUSY)
}

// adopt enters the attachment's interface into a lease of its container that has none.
// As it was, each interface of the container would be given the address.
//
// A new file takes the place of the old one, marked as a lease of this boot: load has
// taken the old one into it.
func (s *Store) adopt(a netip.Addr, o spec.Attachment) error {
	old, err := s.Holder(a)
	if err != nil || old.IfName != "" {
		return err
	}
	w, err := s.draft(o)
	if err != nil {
		return err
	}
	defer w.close()
	own, err := s.ownFolder(true)
	if err != nil {
		return err
	}
	name := a.String()
	if err := own.remove(name); err != nil && !errors.Is(err, os.ErrNotExist) { // of a process that was killed here
		return err
	}
	if _, err := own.publish(w, a, s.o.KeepAcrossBoots); err != nil {
		return err
	}
	err = s.leases.change("replace lease", name, func() error { return unix.Renameat(own.fd, name, s.leases.fd, name) })
	if err != nil {
		return err
	}
	s.changed = true
	s.forget(entry{old, a})
	s.enter(entry{w.lease, a})
	if s.o.KeepAcrossBoots {
		return s.leases.sync()
	}
	return nil
}

// draft writes a lease of the attachment that has no address yet.
// The caller closes it. On a view it is an error.
func (s *Store) draft(o spec.Attachment) (*draft, error) {
	if err := s.load(); err != nil {
		return nil, err
	}
	if s.readOnly {
		return nil, errView
	}
	return s.leases.newDraft(Lease{o.ContainerID, o.IfName}, s.o.KeepAcrossBoots)
}

// publish makes a draft the lease of an address; false: that is taken.
// The index follows; it cannot fail. A name that does not get to the disk is taken back.
func (s *Store) publish(w *draft, a netip.Addr) (bool, error) {
	ok, err := s.leases.publish(w, a, s.o.KeepAcrossBoots)
	if !ok {
		return false, err
	}
	s.changed = true
	s.enter(entry{w.lease, a})
	if !s.o.KeepAcrossBoots {
		return true, nil
	}
	if err = s.leases.sync(); err != nil {
		err = errors.Join(err, s.free(a, spec.Attachment{ContainerID: w.lease.ContainerID, IfName: w.lease.IfName}))
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
		if err := s.free(a, o); err != nil {
			errs = append(errs, err)
			continue
		}
		freed = append(freed, a)
	}
	return freed, errors.Join(errs...)
}

// free removes one lease of an attachment.
// It is in the index with its interface or without; both are tried.
func (s *Store) free(a netip.Addr, o spec.Attachment) error {
	if s.readOnly {
		return errView
	}
	if err := s.leases.remove(a.String()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	s.changed = true
	s.forget(entry{Lease{o.ContainerID, o.IfName}, a})
	s.forget(entry{Lease{ContainerID: o.ContainerID}, a})
	return nil
}

// Keep frees the leases whose owner is not valid and sets aside those without a
// readable owner. A lease without an interface is asked for with an empty one. It
// goes on past the first failure.
//
// It reads every lease, since it is the one verb that is asked about all. It is also
// where a damaged index comes to an end: a new one is written.
func (s *Store) Keep(valid func(spec.Attachment) bool) error {
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
		case errors.Is(err, os.ErrNotExist): // it went meanwhile
		case err != nil:
			errs = append(errs, s.setAside(name, err))
		case valid(spec.Attachment{Network: s.network, ContainerID: l.ContainerID, IfName: l.IfName}):
			left[l] = append(left[l], a)
		default:
			s.changed = true
			if err := s.leases.remove(name); err != nil {
				errs = append(errs, err)
				left[l] = append(left[l], a)
			}
		}
	}
	s.x.mem = left
	s.writeIndex()
	return errors.Join(errs...)
}

// Last returns the address of a range set that was reserved last, where the
// search for the next begins; false: none that can be read.
func (s *Store) Last(set int) (netip.Addr, bool) { return s.leases.last(set) }

// SetLast notes the address for Last.
// Other tools read it too, and continue from there.
func (s *Store) SetLast(set int, a netip.Addr) error {
	if s.readOnly {
		return errView
	}
	s.changed = true
	return s.leases.setLast(set, a)
}

// setAside moves what stands in the place of a lease out of the way, whatever
// it is, and tells where to.
// The time in the new name lets nothing be replaced there (RENAME_NOREPLACE makes
// sure). Nothing in the folder is ever read or deleted by us.
func (s *Store) setAside(name string, why error) error {
	own, err := s.ownFolder(true)
	if err != nil {
		return err
	}
	aside, err := own.sub(asideDir, true)
	if err != nil {
		return err
	}
	defer aside.close()
	to := name + "." + strconv.FormatInt(time.Now().UnixNano(), 36)
	err = s.leases.change("set aside", name, func() error {
		return unix.Renameat2(s.leases.fd, name, aside.fd, to, unix.RENAME_NOREPLACE)
	})
	if err != nil {
		return err
	}
	s.changed = true
	s.o.Warn("%v: moved to %s", why, filepath.Join(aside.path, to))
	return nil
}

// ownFolder opens the directory of what is ours alone.
// It stays open with the store.
func (s *Store) ownFolder(create bool) (folder, error) {
	if s.own.fd >= 0 {
		return s.own, nil
	}
	all, err := s.data.sub(ownDir, create)
	if err != nil {
		return all, err
	}
	defer all.close()
	s.own, err = all.sub(s.network, create)
	return s.own, err
}
