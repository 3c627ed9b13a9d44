//go:build !no_tuning

package applets

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"cnibox/internal/undo"
	"cnibox/spec"
)

// A tuningRecord is the file. Its name has been that of the reference's, and is without
// the network then; the reference's has no owner, and ours had no interface.
type tuningRecord struct {
	claim
	tuningLink
}

// olderRecord is the name of the record in the reference and in earlier versions.
// "a_b" with "c" has the name of "a" with "b_c", and all networks have the same.
func olderRecord(a spec.Attachment) string {
	const longest = 255 - len(recordTemp) // NAME_MAX, linux/limits.h
	if name := a.ContainerID + "_" + a.IfName + ".json"; len(name) <= longest {
		return name
	}
	return recordName(a)
}

// readTuned reads a record that may be the attachment's; foreign reports that it
// names another owner.
func readTuned(dir records, name string, a spec.Attachment) (rec *tuningRecord, foreign bool, err error) {
	rec = &tuningRecord{}
	if err := dir.read(name, rec); err != nil {
		return nil, false, err
	}
	if rec.recordOwner != (recordOwner{}) && !rec.Of(a) {
		return nil, true, os.ErrNotExist
	}
	return rec, false, nil
}

// remember puts the attributes as they are before ADD on record. What an earlier ADD has
// recorded of this interface is older, and stays; a record of an interface that the
// attachment has lost is written over.
// The reference writes over it, and a DEL then restores what tuning itself has set.
func (t tuned) remember(undo *undo.Stack, p *tuningPlan, a spec.Attachment, before tuningLink) error {
	if before.empty() {
		return nil
	}
	id, err := t.id()
	if err != nil {
		return err
	}
	old, _, err := readTuned(p.dir, recordName(a), a)
	if errors.Is(err, os.ErrNotExist) {
		old, _, _ = readTuned(p.dir, olderRecord(a), a)
	}
	// One without the interface is of this one if that is tuned already.
	if old != nil && (old.linkID == id || old.linkID == linkID{} && p.link.change(t.link).empty()) {
		before = old.tuningLink.or(before)
	}
	if err := replaceFor(p.dir, undo, a, tuningRecord{claim{recordOwner: ownerOf(a), linkID: id}, before}); err != nil {
		return fmt.Errorf("former attributes of %s: %w", a.IfName, err)
	}
	return nil
}

// tuningDel gives the link its former attributes back, if it is still there and the
// attachment's, and forgets them. Sysctls stay: those of the interface go with it, and the
// others are the namespace's, where another attachment may have asked for the same.
// The file goes in any case; the reference leaves it for ever when the link has gone.
func tuningDel(_ context.Context, r *spec.Request) error {
	dir, a := recordsOf(r, tuningDataDir), r.Attachment
	was, _, err := readTuned(dir, recordName(a), a)
	older, foreign, olderErr := readTuned(dir, olderRecord(a), a)
	if errors.Is(err, os.ErrNotExist) {
		was, err = older, olderErr
	}
	if err == nil {
		var other bool
		other, err = restoreTuned(r, dir, was)
		// A record without an owner is that of whose the interface is.
		foreign = foreign || other && was.recordOwner == recordOwner{}
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		// The link is about to go, and no second DEL would do better.
		r.Warn("former attributes of %s: %v", r.IfName, err)
	}
	err = dir.remove(recordName(a))
	if !foreign {
		err = errors.Join(err, dropOlder(dir, olderRecord(a)))
	}
	return err
}

// dropOlder deletes a record of the reference or of an earlier version. What is no file
// is none, and stays.
func dropOlder(dir records, name string) error {
	var errs []error
	for _, path := range []string{filepath.Join(string(dir), name), filepath.Join(string(dir), name+recordTemp)} {
		if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() {
			errs = append(errs, dropFile(path))
		}
	}
	return errors.Join(errs...)
}

// restoreTuned restores the link, if namespace and link are still there; other reports that
// the link is another attachment's.
// That neither is there is how most containers end.
func restoreTuned(r *spec.Request, dir records, was *tuningRecord) (other bool, err error) {
	c, err := openChained(r, 0)
	if err != nil {
		return false, err
	}
	defer c.close()
	if c.link == nil {
		return false, nil
	}
	own, err := c.owns(r, dir, &was.claim)
	if err != nil || !own {
		return err == nil, err
	}
	if id, err := c.id(); err != nil || was.linkID != id && was.linkID != (linkID{}) {
		return false, err // the record is of one that the attachment had before
	}
	return false, tuned{c}.restore(was.tuningLink)
}

// tuningGC forgets the former attributes of links that are gone.
// Those without an owner are the reference's, and stay.
func tuningGC(_ context.Context, r *spec.Request) error {
	return recordsOf(r, tuningDataDir).keep(r.Network, r.Valid)
}
