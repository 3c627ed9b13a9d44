package tuning

import (
	"context"
	"errors"
	"fmt"
	"os"

	"cnibox/applets/chained"
	"cnibox/applets/record"
	"cnibox/internal/undo"
	"cnibox/spec"
)

// A formerRecord is the file of former attributes. The reference's has no owner and no interface.
type formerRecord struct {
	chained.Record
	attributes
}

// sharedName is the reference's name of the record, so that its DEL finds it. It has no network, and
// so may be that of several attachments.
func sharedName(a spec.Attachment) string {
	const longest = 255 - len(record.TempSuffix) // NAME_MAX, linux/limits.h
	if name := a.ContainerID + "_" + a.IfName + ".json"; len(name) <= longest {
		return name
	}
	return record.Name(a)
}

// readTuned reads a record that may be the attachment's; foreign reports that it
// names another owner.
func readTuned(dir record.Dir, name string, a spec.Attachment) (rec *formerRecord, foreign bool, err error) {
	rec = &formerRecord{}
	if err := dir.Read(name, rec); err != nil {
		return nil, false, err
	}
	if rec.Owner != (record.Owner{}) && !rec.Of(a) {
		return nil, true, os.ErrNotExist
	}
	return rec, false, nil
}

// remember records the attributes before ADD. Values that an earlier ADD has recorded of this
// interface stay; the record of an interface that the attachment has lost is replaced. Where another
// attachment has the shared name, or an earlier version wrote the record, it has a name of its own.
func (t tuned) remember(undo *undo.Stack, p *plan, a spec.Attachment, before attributes) error {
	if before.empty() {
		return nil
	}
	id, err := t.ID()
	if err != nil {
		return err
	}
	name := record.Name(a)
	old, _, err := readTuned(p.dir, name, a)
	if errors.Is(err, os.ErrNotExist) {
		var foreign bool
		if old, foreign, _ = readTuned(p.dir, sharedName(a), a); !foreign {
			name = sharedName(a)
		}
	}
	// a record without the interface is that of this one if it is tuned already
	if old != nil && (old.LinkID == id || old.LinkID == chained.LinkID{} && p.link.change(t.Link).empty()) {
		before = old.attributes.or(before)
	}
	if err := chained.ReplaceRecord(p.dir, undo, name, formerRecord{chained.Record{Owner: record.OwnerOf(a), LinkID: id}, before}); err != nil {
		return fmt.Errorf("former attributes of %s: %w", a.IfName, err)
	}
	return nil
}

// del restores the former attributes of the link, if it still exists and is the attachment's, and
// deletes the record. Sysctls stay: those of the interface are deleted with it, and others may be
// set by another attachment of the namespace too.
func del(_ context.Context, r *spec.Request) error {
	dir, a := record.Configured(r, dataDir), r.Attachment
	was, _, err := readTuned(dir, record.Name(a), a)
	shared, foreign, sharedErr := readTuned(dir, sharedName(a), a)
	if errors.Is(err, os.ErrNotExist) {
		was, err = shared, sharedErr
	}
	if err == nil {
		var other bool
		other, err = restoreTuned(r, dir, was)
		// a record without an owner belongs to the owner of the interface
		foreign = foreign || other && was.Owner == record.Owner{}
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		// the link is about to be deleted, and a second DEL would fail too
		r.Warn("former attributes of %s: %v", r.IfName, err)
	}
	err = dir.Remove(record.Name(a))
	if !foreign {
		err = errors.Join(err, dir.Remove(sharedName(a)))
	}
	return err
}

// restoreTuned restores the link, if namespace and link are still there; other reports that
// the link is another attachment's.
func restoreTuned(r *spec.Request, dir record.Dir, was *formerRecord) (other bool, err error) {
	c, err := chained.Open(r, 0)
	if err != nil {
		return false, err
	}
	defer c.Close()
	if c.Link == nil {
		return false, nil
	}
	own, err := c.Owns(r, dir, &was.Record)
	if err == nil && !own {
		other, err = c.LabelledOther(r.Attachment)
	}
	if err != nil || !own {
		return other, err
	}
	if id, err := c.ID(); err != nil || was.LinkID != id && was.LinkID != (chained.LinkID{}) {
		return false, err // the record is of one that the attachment had before
	}
	return false, tuned{c}.restore(was.attributes)
}

// gc deletes the records of links that are gone. Records of the reference, without an owner, stay.
func gc(_ context.Context, r *spec.Request) error {
	return record.Configured(r, dataDir).DeleteStale(r.Network, r.Valid)
}
