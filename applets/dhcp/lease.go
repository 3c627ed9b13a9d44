package dhcp

import (
	"errors"
	"os"
	"path/filepath"

	"cnibox/applets/record"
	"cnibox/ipam/dhcp"
	"cnibox/spec"
)

// A dhcpRecord is the file of an attachment's leases. It is authoritative: without it there is
// no lease, and removing it releases the lease.
type dhcpRecord struct {
	record.Owner
	dhcp.State
}

func dhcpLeaseName(a spec.Attachment) string { return a.Key() + ".json" }

// A dhcpStore keeps the state of one attachment in its file.
type dhcpStore struct {
	dir   record.Dir
	owner record.Owner
}

func (s *dhcpStore) name() string {
	return dhcpLeaseName(spec.Attachment{Network: s.owner.Network, ContainerID: s.owner.ContainerID, IfName: s.owner.IfName})
}

func (s *dhcpStore) Save(state *dhcp.State) error {
	return s.dir.Write(s.name(), &dhcpRecord{s.owner, *state})
}

// Kept reports whether the file exists. One that cannot be looked up counts as existing.
func (s *dhcpStore) Kept() bool {
	_, err := os.Lstat(filepath.Join(string(s.dir), s.name()))
	return !errors.Is(err, os.ErrNotExist)
}

func (s *dhcpStore) Drop() error { return s.dir.Remove(s.name()) }
