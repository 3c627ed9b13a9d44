//go:build !no_flannel

package applets

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"cnibox/internal/fault"
	"cnibox/internal/json"
	"cnibox/spec"
)

const (
	// flannelOwner is the member of a state file that says whose it is. The
	// reference hands it to the delegate, which does not know it.
	flannelOwner = "cnibox"
	// flannelBroken ends the name of a state file that was set aside. No container
	// ID has a "~".
	flannelBroken = "~broken"
)

// flannelRecords is the folder of the state files: what each delegate was told,
// which DEL tells it again.
//
// A file of ours is named after the key of the attachment. The reference's is named
// after the container alone, so two networks of a container write over each other
// there. That name is given to the first attachment of a container too, as a link, so
// that the reference's DEL finds it.
type flannelRecords struct{ records }

// A flannelRecord is one state file. Of a file of the reference's the interface
// is not known.
type flannelRecord struct {
	file  string
	owner recordOwner
	conf  json.RawMessage // the delegate's, without the owner
}

// errBrokenRecord is about what stands in the place of a state file and is none.
var errBrokenRecord = errors.New("not a state file")

// flannelFile is the name of an attachment's state file.
func flannelFile(a spec.Attachment) string { return "~" + a.Key() }

// of reports whether a record is the attachment's. One of the reference's is if it is
// of the same network and container.
func (s *flannelRecord) of(a spec.Attachment) bool {
	return s.owner == ownerOf(a) || s.owner == recordOwner{Network: a.Network, ContainerID: a.ContainerID}
}

// load reads one file. Errors are os.ErrNotExist, errBrokenRecord, or of code 5.
func (d flannelRecords) load(file string) (*flannelRecord, error) {
	var raw json.RawMessage
	err := d.read(file, &raw)
	var path *os.PathError
	if errors.As(err, &path) && !errors.Is(err, unix.ELOOP) {
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			return nil, os.ErrNotExist
		}
		return nil, spec.Errorf(spec.CodeIO, "%w", err)
	}
	s := &flannelRecord{file: file}
	var head struct {
		Name  string      `json:"name"`
		Owner recordOwner `json:"cnibox"`
	}
	if err == nil {
		err = json.Unmarshal(raw, &head)
	}
	if err == nil {
		s.conf, err = spec.Splice(raw, nil, flannelOwner)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errBrokenRecord, err)
	}
	if s.owner = head.Owner; s.owner == (recordOwner{}) {
		s.owner = recordOwner{Network: head.Name, ContainerID: file}
	}
	return s, nil
}

// find returns the record of an attachment, its own before the reference's.
// A broken file is set aside and told, and counts as none: os.ErrNotExist.
func (d flannelRecords) find(r *spec.Request) (*flannelRecord, error) {
	for _, file := range []string{flannelFile(r.Attachment), r.ContainerID} {
		s, err := d.load(file)
		switch {
		case err == nil && s.of(r.Attachment):
			return s, nil
		case errors.Is(err, errBrokenRecord):
			d.setAside(r, file, err)
		case err != nil && !errors.Is(err, os.ErrNotExist):
			return nil, err
		}
	}
	return nil, os.ErrNotExist
}

// setAside renames a file that nobody can use, so that people can look at it.
// The reference keeps it where it is and says that all is well.
func (d flannelRecords) setAside(r *spec.Request, file string, why error) {
	path := filepath.Join(string(d.records), file)
	err := fault.Check("set aside " + file)
	if err == nil {
		err = os.Rename(path, path+flannelBroken)
	}
	if err != nil {
		r.Warn("state file %s: %v; it stays: %v", path, why, err)
		return
	}
	r.Warn("state file %s: %v; it is %s now", path, why, path+flannelBroken)
}

// save writes what the delegate is told, before it is. Errors have code 5.
func (d flannelRecords) save(a spec.Attachment, conf []byte) error {
	owner, _ := json.Marshal(ownerOf(a)) // strings cannot fail
	raw, err := spec.Splice(conf, []spec.Member{{Name: flannelOwner, Value: owner}})
	if err != nil {
		return err
	}
	if err := d.write(flannelFile(a), json.RawMessage(raw)); err != nil {
		return err
	}
	d.offer(a)
	return nil
}

// offer gives the file the reference's name too unless another attachment has it.
// Without it only a way back to the reference is lost, so nothing here is an error.
func (d flannelRecords) offer(a spec.Attachment) {
	s, err := d.load(a.ContainerID)
	path := filepath.Join(string(d.records), a.ContainerID)
	switch {
	case err == nil && s.owner == ownerOf(a):
		if dropFile(path) != nil {
			return
		}
	case !errors.Is(err, os.ErrNotExist):
		return
	}
	if fault.Check("link record") == nil {
		os.Link(filepath.Join(string(d.records), flannelFile(a)), path)
	}
}

// forget removes the attachment's files, the reference's too.
func (d flannelRecords) forget(a spec.Attachment) error {
	err := d.remove(flannelFile(a))
	if s, lerr := d.load(a.ContainerID); lerr == nil && s.of(a) {
		err = errors.Join(err, dropFile(filepath.Join(string(d.records), a.ContainerID)))
	}
	return err
}
