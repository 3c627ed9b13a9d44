package flannel

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/internal/disk"
	"github.com/cnibox/cnibox/spec"
)

const (
	// ownerKey is the member of a state file that names its attachment.
	ownerKey = "cnibox"
	// brokenSuffix ends the name of a state file that cannot be read. No container ID has
	// a "~".
	brokenSuffix = "~broken"
)

// records is the directory of the state files. Each has the configuration that a delegate got at
// ADD, and gets again at DEL.
//
// Our file is named after the attachment's key. The reference names its files after the container
// alone, so two networks of a container overwrite each other's file. Such a file is read and
// removed, but never written.
type records struct{ record.Dir }

// A delegateRecord is one state file. One of the reference does not name the interface.
type delegateRecord struct {
	file  string
	owner spec.Attachment
	conf  json.RawMessage // the delegate's, without the owner
}

// errBrokenRecord reports a file that is not a state file.
var errBrokenRecord = errors.New("not a state file")

// recordName returns the name of an attachment's state file.
func recordName(a spec.Attachment) string { return "~" + a.Key() }

// belongsTo reports whether a record is the attachment's. A record of the reference is compared by
// network and container.
func (s *delegateRecord) belongsTo(a spec.Attachment) bool {
	return s.owner == a || s.owner == spec.Attachment{Network: a.Network, ContainerID: a.ContainerID}
}

// load reads one file. Errors are os.ErrNotExist, errBrokenRecord, or of code 5.
func (d records) load(file string) (*delegateRecord, error) {
	var raw json.RawMessage
	err := d.Read(file, &raw)
	var path *os.PathError
	if errors.As(err, &path) && !errors.Is(err, unix.ELOOP) {
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			return nil, os.ErrNotExist
		}
		return nil, spec.Errorf(spec.CodeIO, "%w", err)
	}
	s := &delegateRecord{file: file}
	var head struct {
		Name  string          `json:"name"`
		Owner spec.Attachment `json:"cnibox"`
	}
	if err == nil {
		err = json.Unmarshal(raw, &head)
	}
	if err == nil {
		s.conf, err = spec.Merge(raw, nil, ownerKey)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errBrokenRecord, err)
	}
	if s.owner = head.Owner; s.owner == (spec.Attachment{}) {
		s.owner = spec.Attachment{Network: head.Name, ContainerID: file}
	}
	return s, nil
}

// find returns the record of an attachment: its own, or else the reference's. It quarantines a
// broken file and returns os.ErrNotExist.
func (d records) find(r *spec.Request) (*delegateRecord, error) {
	for _, file := range []string{recordName(r.Attachment), r.ContainerID} {
		s, err := d.load(file)
		switch {
		case err == nil && s.belongsTo(r.Attachment):
			return s, nil
		case errors.Is(err, errBrokenRecord):
			d.quarantine(r, file, err)
		case err != nil && !errors.Is(err, os.ErrNotExist):
			return nil, err
		}
	}
	return nil, os.ErrNotExist
}

// quarantine renames an unusable file.
func (d records) quarantine(r *spec.Request, file string, why error) {
	path := filepath.Join(string(d.Dir), file)
	if err := disk.Rename(path, path+brokenSuffix); err != nil {
		r.Warn("state file %s: %v; it cannot be renamed: %v", path, why, err)
		return
	}
	r.Warn("state file %s: %v; it is %s now", path, why, path+brokenSuffix)
}

// save writes the delegate's configuration, and returns the undo, which restores the former file.
// Errors have code 5.
func (d records) save(a spec.Attachment, conf []byte) (restore func() error, err error) {
	raw, err := spec.Merge(conf, map[string]any{ownerKey: a})
	if err != nil {
		return nil, err
	}
	return d.Exchange(recordName(a), json.RawMessage(raw))
}

// remove removes the attachment's file. It also removes the file named after the container, if that
// belongs to the attachment: the reference's, or a hard link by an earlier version.
func (d records) remove(a spec.Attachment) error {
	err := d.Remove(recordName(a))
	if s, lerr := d.load(a.ContainerID); lerr == nil && s.belongsTo(a) {
		err = errors.Join(err, record.RemoveFile(filepath.Join(string(d.Dir), a.ContainerID)))
	}
	return err
}
