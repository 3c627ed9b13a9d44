//go:build !no_dhcp

package applets

import (
	"errors"
	"os"
	"path/filepath"

	"cnibox/dhcp"
	"cnibox/spec"
)

// A dhcpRecord is the file of an attachment's leases. It is the truth: a lease without
// it is nobody's, and whoever removes it has given the lease back.
type dhcpRecord struct {
	recordOwner
	dhcp.State
}

// dhcpLeaseName is the name of the file. Two networks may have the same container and
// interface, so the key is in it and not the names.
func dhcpLeaseName(a spec.Attachment) string { return a.Key() + ".json" }

// A dhcpStore keeps the state of one attachment in its file.
type dhcpStore struct {
	dir   records
	owner recordOwner
}

// name is the file's.
func (s *dhcpStore) name() string {
	return dhcpLeaseName(spec.Attachment{Network: s.owner.Network, ContainerID: s.owner.ContainerID, IfName: s.owner.IfName})
}

// Save replaces the file.
func (s *dhcpStore) Save(state *dhcp.State) error {
	return s.dir.write(s.name(), &dhcpRecord{s.owner, *state})
}

// Kept tells whether the file is there. One that cannot be looked at is.
func (s *dhcpStore) Kept() bool {
	_, err := os.Lstat(filepath.Join(string(s.dir), s.name()))
	return !errors.Is(err, os.ErrNotExist)
}

// Drop removes the file.
func (s *dhcpStore) Drop() error { return s.dir.remove(s.name()) }
