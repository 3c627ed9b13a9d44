package dhcp

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/ipam/dhcp"
	"github.com/cnibox/cnibox/spec"
)

// A leaseRecord is the file of an attachment's leases. It is authoritative: without it there is
// no lease, and removing it releases the lease.
type leaseRecord = record.Record[dhcp.State]

// A leaseStore stores the state of one attachment in its file.
type leaseStore struct {
	dir   record.Dir
	owner spec.Attachment
}

func (s *leaseStore) name() string { return record.Name(s.owner) }

func (s *leaseStore) Save(state *dhcp.State) error {
	rec := leaseRecord{Head: record.Head{Attachment: s.owner}, Data: *state}
	return rec.Write(s.dir)
}

// Kept reports whether the file exists. If that is unknown, it returns true.
func (s *leaseStore) Kept() bool {
	_, err := os.Lstat(filepath.Join(string(s.dir), s.name()))
	return !errors.Is(err, os.ErrNotExist)
}

func (s *leaseStore) Drop() error { return s.dir.Remove(s.name()) }
