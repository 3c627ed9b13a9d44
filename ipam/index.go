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
)

// The index maps an owner to its addresses, so that an ADD or a DEL among 60,000 leases reads only
// its own leases. It is a directory for each boot with a mark for each owner: a symbolic link whose
// target lists the addresses:
//
//	.cnibox/demo/by-boot/0b7cb0a8-…/web:eth0 -> 10.1.0.2,fd00::2
//
// A symbolic link is created and read in one call each, and is never half written. The lease files
// are authoritative: an address of a mark counts if its file has that owner. A mark is made before
// the lease and deleted after it, so that a killed process leaves no lease of its own without a
// mark. The reference makes no marks. For ADD, an owner without a mark has no lease; DEL, CHECK and
// GET then read all leases, as the reference does.
//
// A mark that cannot be written is not an error of a verb, since the leases can be read.

// maxTarget is PATH_MAX less the zero byte, include/uapi/linux/limits.h. If an owner's addresses do
// not fit, the target is many, and all leases are read.
const (
	maxTarget = 4095
	many      = "many"
)

// An index is the index of this boot.
type index struct {
	dir     directory      // fd -1: there is no index, so all leases are read
	expired map[entry]bool // of earlier boots, not freed yet
}

// An entry is an address that a mark lists.
type entry struct {
	mark string
	addr netip.Addr
}

// linkName returns the name of an owner's mark. It escapes a slash, and replaces the end of a long
// name by a hash; the leases distinguish two owners with the same name.
func linkName(l Lease) string {
	name := escapeName(l.ContainerID) + ":" + escapeName(l.IfName)
	if len(name) <= unix.NAME_MAX {
		return name
	}
	h := fnv.New64a()
	h.Write([]byte(name))
	return fmt.Sprintf("%s%%%016x", name[:200], h.Sum64())
}

// escapeName replaces characters that have a meaning in the name of a mark by %XX.
func escapeName(s string) string {
	if !strings.ContainsAny(s, "%/:") {
		return s
	}
	return strings.NewReplacer("%", "%25", "/", "%2F", ":", "%3A").Replace(s)
}

// load opens the index of this boot. If there is none, the boot is new, see [Store.beginBoot].
func (s *Store) load() error {
	if s.x != nil {
		return nil
	}
	dir, err := s.bootDirectory()
	if err != nil {
		return s.beginBoot()
	}
	s.x = &index{dir: dir}
	return nil
}

// scan reads all leases with a readable owner, in the directory's order. It skips names that are
// not addresses, and leases that are deleted meanwhile.
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
		// a lease without an owner stays until the address is needed
		if err == nil && !s.x.expired[entry{linkName(l), a}] {
			each(a, l)
		}
	}
	return nil
}

// search reads all leases, as the reference does; unnamed are those of the owner's container without
// an interface.
func (s *Store) search(owner Lease) (found, unnamed []netip.Addr, err error) {
	err = s.scan(func(a netip.Addr, l Lease) {
		switch {
		case l == owner:
			found = append(found, a)
		case l == Lease{owner.ContainerID, ""}:
			unnamed = append(unnamed, a)
		}
	})
	slices.SortFunc(found, netip.Addr.Compare)
	slices.SortFunc(unnamed, netip.Addr.Compare)
	return found, unnamed, err
}

// marked returns the addresses of an owner's mark that are leased to the owner, lowest first. It
// reads all leases if there is no index, or if the mark lists no addresses.
func (s *Store) marked(owner Lease) (found []netip.Addr, err error) {
	if err := s.load(); err != nil {
		return nil, err
	}
	if s.x.dir.fd < 0 {
		found, _, err = s.search(owner)
		return found, err
	}
	text, err := s.x.dir.target(linkName(owner))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	addrs, ok := parseTarget(text)
	if !ok {
		found, _, err = s.search(owner)
		return found, err
	}
	for _, a := range addrs {
		if l, _, err := s.leases.lease(a); err == nil && l == owner && !slices.Contains(found, a) {
			found = append(found, a)
		}
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return found, nil
}

// mark makes the mark of an owner list these addresses; without addresses it deletes the mark. A
// mark that cannot be deleted does no harm.
func (s *Store) mark(l Lease, addrs ...netip.Addr) {
	if s.x.dir.fd < 0 || s.readOnly {
		return
	}
	if len(addrs) == 0 {
		_ = s.x.dir.remove(linkName(l))
		return
	}
	err := s.x.dir.setTarget(linkName(l), target(addrs))
	if err == nil && s.o.KeepAcrossBoots {
		err = s.x.dir.sync()
	}
	if err != nil {
		s.abandonIndex(err)
	}
}

// remark makes the mark of an owner list those of its addresses that are still leased to it.
func (s *Store) remark(l Lease) {
	if s.x.dir.fd < 0 { // without an index all leases would be read
		return
	}
	if left, err := s.marked(l); err == nil {
		s.mark(l, left...)
	}
}

// abandonIndex closes an index that could not be changed and removes its name, so that the next
// store begins a new one: DEL would not find addresses that a mark lacks, and a lease without a
// mark would outlive the boot.
func (s *Store) abandonIndex(err error) {
	s.o.Warn("index of the leases of network %s: %v", s.network, err)
	s.x.dir.close()
	s.x.dir.fd = -1
	all, err := s.byBoot(false)
	if err != nil {
		return
	}
	defer all.close()
	err = all.change("rename", s.bootName(), func() error {
		return unix.Renameat(all.fd, s.bootName(), s.ownDir.fd, nextDir)
	})
	if err != nil {
		s.o.Warn("%v", err)
	}
}

// update makes the marks match the leases.
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

// entries adds the entries of all marks.
func (d directory) entries(all map[entry]bool) error {
	names, err := d.names()
	for _, name := range names {
		text, _ := d.target(name)
		addrs, _ := parseTarget(text)
		for _, a := range addrs {
			all[entry{name, a}] = true
		}
	}
	return err
}

// target formats the addresses of a mark.
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

// parseTarget is the reverse of target; false: the leases must be read.
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
