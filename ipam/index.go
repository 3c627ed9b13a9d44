package ipam

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"cnibox/spec"
)

// The index finds the addresses of an owner, so that an ADD or a DEL among 60,000 leases reads
// one of them and not all. It is a directory for each boot with a mark for each owner: a symbolic
// link whose target lists the addresses:
//
//	.cnibox/demo/by-boot/0b7cb0a8-…/web:eth0 -> 10.1.0.2,fd00::2
//
// A symbolic link is made and read in one call each, and is never half written. The lease files
// decide: an address of a mark counts if its file has that owner. A mark is made before the lease
// and goes after it, so that a store that is killed leaves no lease of its own without one. The
// reference makes no marks: to ADD, an owner without one has no lease; DEL, CHECK and GET then read
// all leases, as the reference does.
//
// A mark that cannot be written is not an error of a verb, since the leases can be read.

// maxTarget is PATH_MAX less the zero byte, include/uapi/linux/limits.h. An owner of more
// addresses than fit has the target many, which stands for a scan.
const (
	maxTarget = 4095
	many      = "many"
)

// An index is the one of this boot.
type index struct {
	dir     directory             // fd -1: it could not be written, or is not there for a view
	expired map[netip.Addr]string // what a view counts as free: the name of the owner's mark

	// One mark, as mostly a store is about one owner.
	owner Lease
	addrs []netip.Addr // what it has to list
	text  string       // what it lists on disk; empty: there is none
}

// linkName is the name of an owner's mark. A slash is escaped, and the end of a long name
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

// escapeName writes as %XX what has a meaning in the name of a mark.
func escapeName(s string) string {
	if !strings.ContainsAny(s, "%/:") {
		return s
	}
	return strings.NewReplacer("%", "%25", "/", "%2F", ":", "%3A").Replace(s)
}

// load opens the index of this boot. Without one the boot is new, see [Store.begin].
func (s *Store) load() error {
	if s.x != nil {
		return nil
	}
	dir, err := s.bootDirectory()
	if err != nil {
		return s.begin()
	}
	s.x = &index{dir: dir}
	return nil
}

// scan reads all leases with a readable owner. Names that are no addresses are skipped, and
// leases that are deleted meanwhile. The order is the directory's.
func (s *Store) scan(each func(a netip.Addr, l Lease)) error {
	names, err := s.leases.names()
	if err != nil {
		return err
	}
	for _, name := range names {
		a, ok := leaseName(name)
		if !ok {
			continue
		}
		l, _, err := s.leases.lease(a)
		// one without an owner stays until the address is needed
		if err == nil && !s.x.isExpired(a, l) {
			each(a, l)
		}
	}
	return nil
}

// isExpired reports whether a lease is of an earlier boot, which a view cannot free.
func (x *index) isExpired(a netip.Addr, l Lease) bool {
	return len(x.expired) > 0 && x.expired[a] == linkName(l)
}

// search is what the reference does: it reads all leases.
func (s *Store) search(o spec.Attachment) (found []netip.Addr, err error) {
	err = s.scan(func(a netip.Addr, l Lease) {
		if l.Owns(o) {
			found = append(found, a)
		}
	})
	return found, err
}

// turn reads the mark of an owner, and writes the one before if that has changed. If its text is
// not one of ours, or stands for many addresses, the leases are searched.
func (s *Store) turn(l Lease) error {
	if s.x.owner == l {
		return nil
	}
	s.settle()
	s.x.owner, s.x.addrs, s.x.text = l, nil, ""
	if s.x.dir.fd < 0 {
		return nil
	}
	text, err := s.x.dir.target(linkName(l))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	addrs, ok := parseTarget(text)
	if !ok {
		text = many
		addrs, err = s.search(spec.Attachment{Network: s.network, ContainerID: l.ContainerID, IfName: l.IfName})
	}
	s.x.addrs, s.x.text = addrs, text
	return err
}

// enter adds an address to the mark of its owner before it is leased; false: it has it.
func (s *Store) enter(l Lease, a netip.Addr) bool {
	if err := s.turn(l); err != nil {
		s.lost(err)
	}
	if slices.Contains(s.x.addrs, a) {
		return false
	}
	s.x.addrs = append(s.x.addrs, a)
	s.settle()
	return true
}

// forget takes an address that is not leased any more from the mark, which is written when the store
// is closed or turns to another owner.
func (s *Store) forget(l Lease, a netip.Addr) {
	if err := s.turn(l); err != nil {
		s.lost(err)
	}
	s.x.addrs = slices.DeleteFunc(s.x.addrs, func(b netip.Addr) bool { return a == b })
}

// settle writes the mark if it has changed.
func (s *Store) settle() {
	if s.x == nil || s.x.dir.fd < 0 || s.readOnly {
		return
	}
	want := target(s.x.addrs)
	if want == s.x.text {
		return
	}
	name, err := linkName(s.x.owner), error(nil)
	switch {
	case want != "":
		if err = s.x.dir.setTarget(name, want); err == nil && s.o.KeepAcrossBoots {
			err = s.x.dir.sync()
		}
	default:
		if err = s.x.dir.remove(name); errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	}
	s.x.text = want
	if err != nil {
		s.lost(err)
	}
}

// lost abandons an index that could not be changed: a mark that lists too few addresses would hide the
// others from DEL, and a lease without one would outlive the boot. The next store begins a new one.
func (s *Store) lost(err error) {
	s.o.Warn("index of the leases of network %s: %v", s.network, err)
	s.x.dir.close()
	s.x.dir = directory{fd: -1}
	all, err := s.byBoot(false)
	if err != nil || s.readOnly {
		return
	}
	defer all.close()
	err = all.change("rename", s.bootName(), func() error {
		return unix.Renameat(all.fd, s.bootName(), s.own.fd, nextDir)
	})
	if err != nil {
		s.o.Warn("%v", err)
	}
}

// update makes the marks those of the leases.
func (d directory) update(leases map[Lease][]netip.Addr) error {
	names, err := d.names()
	if err != nil {
		return err
	}
	surplus := make(map[string]bool, len(names))
	for _, name := range names {
		surplus[name] = true
	}
	for l, addrs := range leases {
		name := linkName(l)
		if surplus[name] {
			delete(surplus, name)
			if old, err := d.target(name); err == nil && old == target(addrs) {
				continue
			}
		}
		if err := d.setTarget(name, target(addrs)); err != nil {
			return err
		}
	}
	for name := range surplus {
		if err := d.remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// marked returns the addresses of all marks.
func (d directory) marked() map[netip.Addr]string {
	names, err := d.names()
	if err != nil {
		return nil // then the leases are read
	}
	all := make(map[netip.Addr]string, len(names))
	for _, name := range names {
		text, err := d.target(name)
		if err != nil {
			continue
		}
		addrs, _ := parseTarget(text)
		for _, a := range addrs {
			all[a] = name
		}
	}
	return all
}

// entries returns the addresses of all leases with a readable owner. What is marked is not read: that
// may be 60,000 files.
func (s *Store) entries() (all []netip.Addr, err error) {
	if err := s.load(); err != nil {
		return nil, err
	}
	s.settle()
	names, err := s.leases.names()
	if err != nil {
		return nil, err
	}
	var marked map[netip.Addr]string
	if s.x.dir.fd >= 0 {
		marked = s.x.dir.marked()
	}
	for _, name := range names {
		a, ok := leaseName(name)
		if !ok {
			continue
		}
		if marked[a] == "" {
			if l, _, err := s.leases.lease(a); err != nil || s.x.isExpired(a, l) {
				continue
			}
		}
		all = append(all, a)
	}
	return all, nil
}

// target is how a mark lists addresses; empty without one.
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

// parseTarget is the reverse of target; false: the leases have to be read.
func parseTarget(text string) (addrs []netip.Addr, ok bool) {
	for s := range strings.SplitSeq(text, ",") {
		a, ok := leaseName(s)
		if !ok {
			return nil, false
		}
		addrs = append(addrs, a)
	}
	return addrs, true
}

// dropIndex closes the index; its directory stays.
func (s *Store) dropIndex() {
	if s.x != nil {
		s.x.dir.close()
		s.x = nil
	}
}
