package ipam

import (
	"errors"
	"net/netip"
	"os"

	"github.com/cnibox/cnibox/spec"
)

// An OwnedAddr is an address with its owner, from [ReadLeases].
type OwnedAddr struct {
	Addr  netip.Addr
	Owner Lease // zero: no owner can be read in the file
}

// ReadLeases returns all leases of a network from their files, in no order, without the lock and
// without a change, so it does not wait for an ADD that hangs. Leases that are created or deleted
// meanwhile may be missing. Leases of an earlier boot are included. A network without a directory
// has none. If this process must not read some files, the error is os.ErrPermission, and these
// addresses have no owner.
func ReadLeases(dir, network string) ([]OwnedAddr, error) {
	d, err := peek(dir, network)
	if err != nil {
		return nil, skipAbsent(err)
	}
	defer d.close()
	names, err := d.names()
	if err != nil {
		return nil, err
	}
	var all []OwnedAddr
	var refused error
	for _, name := range names {
		a, ok := leaseName(name)
		if !ok {
			continue
		}
		l, _, err := d.lease(a)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if errors.Is(err, os.ErrPermission) {
			refused = err
		}
		all = append(all, OwnedAddr{a, l})
	}
	return all, refused
}

// ReadLease is [ReadLeases] for one address. The error is os.ErrNotExist if it is not leased.
func ReadLease(dir, network string, a netip.Addr) (Lease, error) {
	d, err := peek(dir, network)
	if err != nil {
		return Lease{}, err
	}
	defer d.close()
	l, _, err := d.lease(a)
	if errors.Is(err, errNoOwner) {
		err = nil
	}
	return l, err
}

// peek opens the directory of a network's leases.
func peek(dir, network string) (directory, error) {
	if err := spec.CheckNetworkName(network); err != nil {
		return directory{fd: -1}, err
	}
	data, err := openDirectory(dir)
	if err != nil {
		return data, err
	}
	defer data.close()
	return data.sub(network, false)
}

// skipAbsent returns nil for os.ErrNotExist.
func skipAbsent(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
