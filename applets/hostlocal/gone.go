package hostlocal

import (
	"encoding/hex"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/chain"
	"cnibox/internal/boot"
	"cnibox/internal/disk"
	"cnibox/internal/state"
	"cnibox/rtnl"
	"cnibox/spec"
)

// goneOwners returns a function that reports whether the owner of a lease is known to be gone. It is known
// only if all of these hold:
//
//   - A runtime's cache has an entry of the attachment, and none has one of an attachment that
//     is alive. An attachment without an entry may be another runtime's.
//   - The entry is not older than the lease, which could be another runtime's since then.
//   - Its network namespace does not exist any more: nothing is at its path, or a namespace
//     with another identity. (An entry of an earlier boot is not about a lease of this one.)
//   - No namespace that a process is in, or that is mounted somewhere, has the address: a
//     namespace may live on without its path.
//
// The caches are libcni's, that of the state directory, and the one beside the leases, as
// `cni-exec --cache-dir` has it.
func (h *plan) goneOwners(stateDir string) func(spec.Attachment, netip.Addr, time.Time) bool {
	own, _ := state.CacheDir(stateDir)
	dirs := []string{state.Cache, own, filepath.Dir(h.DataDir)}
	slices.Sort(dirs)
	var caches []chain.Cache
	for _, dir := range slices.Compact(dirs) {
		caches = append(caches, chain.Cache{Dir: dir})
	}
	used := sync.OnceValues(usedAddresses)
	return func(o spec.Attachment, a netip.Addr, since time.Time) bool {
		known := false
		for i := range caches {
			e, err := caches[i].Lookup(o)
			switch {
			case errors.Is(err, os.ErrNotExist):
			case err != nil || !e.Gone():
				return false
			case e.BootID == "" || e.BootID == boot.ID():
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

// usedAddresses returns the addresses of all links of the network namespaces that processes
// are in or that are mounted. One that cannot be looked into is an error.
func usedAddresses() (map[netip.Addr]bool, error) {
	used := map[netip.Addr]bool{}
	seen := map[rtnl.ID]bool{}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	mounts, err := disk.Mounts()
	if err != nil {
		return nil, err
	}
	add := func(path string) error {
		id, err := rtnl.IDAt(path)
		if err != nil || seen[id] {
			return err
		}
		seen[id] = true
		return addressesAt(path, used)
	}
	for _, process := range processes {
		err := add(process + "/ns/net")
		if errors.Is(err, os.ErrPermission) { // it has more privileges than this one
			err = addressesOf(process, used)
		}
		if err != nil && !ended(err) {
			return nil, err
		}
	}
	for _, m := range mounts {
		if !strings.HasPrefix(m.Root, "net:[") {
			continue
		}
		if err := add(m.Point); err != nil && !ended(err) && !errors.Is(err, rtnl.ErrNotNS) {
			return nil, err // ErrNotNS: something else is mounted over it
		}
	}
	return used, nil
}

// ended reports whether a process, or the path of a namespace, is not there any more.
func ended(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// addressesAt adds the addresses of a namespace.
func addressesAt(path string, used map[netip.Addr]bool) error {
	conn, err := rtnl.DialPath(path)
	if err != nil {
		return err
	}
	defer conn.Close()
	all, err := conn.AllAddrs()
	for _, addrs := range all {
		for _, a := range addrs {
			used[a.Prefix.Addr()] = true
		}
	}
	return err
}

// addressesOf adds those of the namespace of a process, as far as files in its directory of
// /proc have them: those of IPv4 on links that are up.
func addressesOf(process string, used map[netip.Addr]bool) error {
	const longest = 16 << 20 // bytes
	v4, err := disk.Read(process+"/net/fib_trie", 0, longest)
	if err != nil {
		return err
	}
	v6, err := disk.Read(process+"/net/if_inet6", 0, longest)
	if err != nil && !errors.Is(err, os.ErrNotExist) { // a kernel without IPv6
		return err
	}
	var last string
	for line := range strings.Lines(string(v4)) {
		words := strings.Fields(line)
		switch {
		case len(words) == 2 && words[0] == "|--":
			last = words[1]
		case len(words) == 3 && words[0] == "/32" && words[2] == "LOCAL":
			if a, err := netip.ParseAddr(last); err == nil {
				used[a] = true
			}
		}
	}
	for line := range strings.Lines(string(v6)) {
		if b, err := hex.DecodeString(line[:min(32, len(line))]); err == nil && len(b) == 16 {
			used[netip.AddrFrom16([16]byte(b))] = true
		}
	}
	return nil
}
