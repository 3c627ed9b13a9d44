package tuning

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"cnibox/applets/record"
	"cnibox/applets/result"
	"cnibox/internal/undo"
	"cnibox/spec"
)

// A formerRecord is the file. Its name has been that of the reference's, and is without
// the network then; the reference's has no owner, and ours had no interface.
type formerRecord struct {
	result.Record
	attributes
}

// olderRecord is the name of the record in the reference and in earlier versions.
// "a_b" with "c" has the name of "a" with "b_c", and all networks have the same.
func olderRecord(a spec.Attachment) string {
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

// remember puts the attributes as they are before ADD on record. What an earlier ADD has
// recorded of this interface is older, and stays; a record of an interface that the
// attachment has lost is written over.
// The reference writes over it, and a DEL then restores what tuning itself has set.
func (t tuned) remember(undo *undo.Stack, p *plan, a spec.Attachment, before attributes) error {
	if before.empty() {
		return nil
	}
	id, err := t.ID()
	if err != nil {
		return err
	}
	old, _, err := readTuned(p.dir, record.Name(a), a)
	if errors.Is(err, os.ErrNotExist) {
		old, _, _ = readTuned(p.dir, olderRecord(a), a)
	}
	// One without the interface is of this one if that is tuned already.
	if old != nil && (old.LinkID == id || old.LinkID == result.LinkID{} && p.link.change(t.Link).empty()) {
		before = old.attributes.or(before)
	}
	if err := result.ReplaceRecord(p.dir, undo, a, formerRecord{result.Record{Owner: record.OwnerOf(a), LinkID: id}, before}); err != nil {
		return fmt.Errorf("former attributes of %s: %w", a.IfName, err)
	}
	return nil
}

// del gives the link its former attributes back, if it is still there and the
// attachment's, and forgets them. Sysctls stay: those of the interface go with it, and the
// others are the namespace's, where another attachment may have asked for the same.
// The file goes in any case; the reference leaves it for ever when the link has gone.
func del(_ context.Context, r *spec.Request) error {
	dir, a := record.Configured(r, dataDir), r.Attachment
	was, _, err := readTuned(dir, record.Name(a), a)
	older, foreign, olderErr := readTuned(dir, olderRecord(a), a)
	if errors.Is(err, os.ErrNotExist) {
		was, err = older, olderErr
	}
	if err == nil {
		var other bool
		other, err = restoreTuned(r, dir, was)
		// A record without an owner is that of whose the interface is.
		foreign = foreign || other && was.Owner == record.Owner{}
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		// The link is about to go, and no second DEL would do better.
		r.Warn("former attributes of %s: %v", r.IfName, err)
	}
	err = dir.Remove(record.Name(a))
	if !foreign {
		err = errors.Join(err, dropOlder(dir, olderRecord(a)))
	}
	return err
}

// dropOlder deletes a record of the reference or of an earlier version. What is no file
// is none, and stays.
func dropOlder(dir record.Dir, name string) error {
	var errs []error
	for _, path := range []string{filepath.Join(string(dir), name), filepath.Join(string(dir), name+record.TempSuffix)} {
		if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() {
			errs = append(errs, record.RemoveFile(path))
		}
	}
	return errors.Join(errs...)
}

// restoreTuned restores the link, if namespace and link are still there; other reports that
// the link is another attachment's.
// That neither is there is how most containers end.
func restoreTuned(r *spec.Request, dir record.Dir, was *formerRecord) (other bool, err error) {
	c, err := result.Open(r, 0)
	if err != nil {
		return false, err
	}
	defer c.Close()
	if c.Link == nil {
		return false, nil
	}
	own, err := c.Owns(r, dir, &was.Record)
	if err != nil || !own {
		return err == nil, err
	}
	if id, err := c.ID(); err != nil || was.LinkID != id && was.LinkID != (result.LinkID{}) {
		return false, err // the record is of one that the attachment had before
	}
	return false, tuned{c}.restore(was.attributes)
}

// gc forgets the former attributes of links that are gone.
// Those without an owner are the reference's, and stay.
func gc(_ context.Context, r *spec.Request) error {
	return record.Configured(r, dataDir).DeleteStale(r.Network, r.Valid)
}
