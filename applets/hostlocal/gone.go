package hostlocal

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/state"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// goneOwners returns a function that reports whether the owner of a lease is known to be gone. All
// of these must hold:
//
//   - A runtime's cache has an entry of the attachment, and no cache has an entry of a live
//     attachment. An attachment without an entry may be another runtime's.
//   - The entry is not older than the lease: a later lease could be another runtime's.
//   - Its network namespace does not exist any more: its path is missing, or leads to a namespace
//     with another identity. (An entry of an earlier boot does not concern a lease of this one.)
//   - No network namespace that exists has the address, as [rtnl.EachNS] finds them, and none is
//     hidden: a namespace may outlive its path.
//
// The caches are libcni's, the one in the state directory, and the one beside the leases, as with
// `cni-exec --cache-dir`.
func (h *plan) goneOwners(stateDir string) func(spec.Attachment, netip.Addr, time.Time) bool {
	caches := sync.OnceValue(func() (caches []chain.Cache) {
		own, _ := state.CacheDir(stateDir)
		dirs := []string{state.Cache, own, filepath.Dir(h.DataDir)}
		slices.Sort(dirs)
		for _, dir := range slices.Compact(dirs) {
			caches = append(caches, chain.Cache{Dir: dir})
		}
		return caches
	})
	used := sync.OnceValues(usedAddresses)
	return func(o spec.Attachment, a netip.Addr, since time.Time) bool {
		known := false
		caches := caches()
		for i := range caches {
			e, err := caches[i].Lookup(o)
			switch {
			case errors.Is(err, os.ErrNotExist):
			case err != nil || !e.Gone():
				return false
			case e.BootID == "" || e.BootID == state.BootID():
				known = known || !e.Written().Before(since)
			}
		}
		if !known {
			return false
		}
		addrs, err := used()
		return err == nil && !addrs[a]
	}
}

// usedAddresses returns the addresses of all links in all network namespaces of the host. A
// namespace that cannot be read is an error, as is one that may exist unseen.
func usedAddresses() (map[netip.Addr]bool, error) {
	used := map[netip.Addr]bool{}
	hidden, err := rtnl.EachNS(func(n *rtnl.Namespace) error {
		for _, addrs := range n.Addrs {
			for _, a := range addrs {
				used[a.Prefix.Addr()] = true
			}
		}
		return nil
	})
	if err == nil && hidden != (rtnl.Hidden{}) {
		err = errors.New(hidden.String())
	}
	return used, err
}
