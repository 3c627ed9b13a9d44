package inventory

import (
	"errors"
	"math"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/ipam"
	"github.com/cnibox/cnibox/spec"
)

// A Network is a network that is configured, or has attachments.
type Network struct {
	Name     string
	File     string // of the configuration; empty: none, or none any more
	Embedded bool   // it is the default one, which needs no file
	Conf     *Conf
	Attached []*Entry
}

// Networks returns those of a directory and of the cache, sorted by name. If the configuration of a
// network is gone, it uses that of an attachment's ADD. It adds embedded, if not nil, when no
// network is configured.
func (v *Inventory) Networks(confDir string, embedded func() *Network, warn func(format string, args ...any)) []*Network {
	lists, wrong := chain.Lists(confDir)
	for _, err := range wrong {
		warn("%v", err)
	}
	byName := map[string]*Network{}
	if len(lists)+len(wrong) == 0 {
		if n := embedded(); n != nil {
			n.Embedded = true
			byName[n.Name] = n
		}
	}
	for _, l := range lists {
		doc, err := l.Effective()
		if err != nil {
			warn("%s: %v", l.File, err)
		}
		byName[l.Name] = &Network{Name: l.Name, File: l.File, Conf: v.Conf(doc)}
	}
	for _, a := range v.Entries {
		n := byName[a.NetworkName]
		if n == nil {
			n = &Network{Name: a.NetworkName, Conf: a.Conf}
			byName[a.NetworkName] = n
		}
		n.Attached = append(n.Attached, a)
	}
	all := make([]*Network, 0, len(byName))
	for _, n := range byName {
		all = append(all, n)
	}
	slices.SortFunc(all, func(a, b *Network) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// A Pool is a range set of a network, and its leases.
type Pool struct {
	Set   ipam.RangeSet
	Used  uint64
	Free  uint64       // 2^64-1: at least so many
	Stale []netip.Addr // of used: the owner has no live attachment in the cache; see Inventory.StaleKnown
}

// Pools counts the leases of a network, which it reads without their lock. It ignores leases
// outside the range sets. With an error, used and stale are not known.
func (v *Inventory) Pools(n *Network) (pools []Pool, err error) {
	for _, set := range n.Conf.pools() {
		pools = append(pools, Pool{Set: set, Free: set.Usable()})
	}
	if len(pools) == 0 {
		return nil, nil
	}
	leased, err := ipam.ReadLeases(n.Conf.Leases(), n.Name)
	live := map[ipam.Lease]bool{}
	for _, a := range n.Attached {
		if a.Alive() {
			live[ipam.Lease{ContainerID: a.ContainerID, IfName: a.IfName}] = true
			live[ipam.Lease{ContainerID: a.ContainerID}] = true
		}
	}
	staleKnown := err == nil && v.StaleKnown()
	for _, l := range leased {
		i := slices.IndexFunc(pools, func(p Pool) bool { return p.Set.Contains(l.Addr) })
		if i < 0 {
			continue
		}
		p := &pools[i]
		p.Used++
		if p.Free > 0 && p.Free != math.MaxUint64 {
			p.Free--
		}
		if staleKnown && !live[l.Owner] && !v.attachedSince(n, l.Owner) {
			p.Stale = append(p.Stale, l.Addr)
		}
	}
	for _, p := range pools {
		slices.SortFunc(p.Stale, netip.Addr.Compare)
	}
	return pools, err
}

// StaleKnown reports whether every entry that may own a lease could be read. Broken entries own
// none.
func (v *Inventory) StaleKnown() bool {
	return !slices.ContainsFunc(v.Broken, func(b chain.Broken) bool { return errors.Is(b.Err(), os.ErrPermission) })
}

// attachedSince reports whether the owner of a lease has a live attachment now: ADD may have
// written both after the entries, and before the leases, were read.
func (v *Inventory) attachedSince(n *Network, owner ipam.Lease) bool {
	e, err := v.Cache.Lookup(spec.Attachment{Network: n.Name, ContainerID: owner.ContainerID, IfName: owner.IfName})
	return err == nil && e.Live()
}

// Alive reports whether the attachment's namespace may exist. A running ADD has its lease before
// its entry is complete.
func (a *Entry) Alive() bool {
	return a.State == chain.StateBusy || a.Live() || a.State == chain.StateUnknown
}

// Gone returns the number of attachments whose namespace is gone, or that are interrupted.
func (n *Network) Gone() (count int) {
	for _, a := range n.Attached {
		if a.State == chain.StateGone || a.State == chain.StateInterrupted {
			count++
		}
	}
	return count
}

// Faults returns the number of attachments with a fault; nil: CHECK was run for none.
func (n *Network) Faults() *int {
	count, checked := 0, false
	for _, a := range n.Attached {
		checked = checked || a.Verdict != ""
		if a.Verdict == chain.StateFault {
			count++
		}
	}
	if !checked {
		return nil
	}
	return &count
}
