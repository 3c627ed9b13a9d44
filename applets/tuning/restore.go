package tuning

import (
	"errors"
	"fmt"
	"maps"
	"os"

	"github.com/cnibox/cnibox/applets/chained"
	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/spec"
)

// A formerRecord is the record of an attachment.
type formerRecord = record.Record[former]

// former stores the former attributes, which are all of the reference's record, and the form that
// the kernel gave to sysctls.
type former struct {
	attributes
	Sysctls map[string]string `json:"sysctls,omitempty"` // see [writeSysctls]
}

// sharedName returns the reference's name of the record, so that its DEL finds it. The name does
// not include the network, so several attachments may share it.
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
	if rec, err = record.Read[former](dir, name); err != nil {
		return nil, false, err
	}
	if rec.Attachment != (spec.Attachment{}) && rec.Attachment != a {
		return nil, true, os.ErrNotExist
	}
	return rec, false, nil
}

// findTuned returns the record of an attachment, and the name under which it is written: the
// attachment's own if it has such a record, as of an earlier version, or another attachment has the
// shared one. Nil: it has no record.
func findTuned(dir record.Dir, a spec.Attachment) (name string, rec *formerRecord) {
	name = record.Name(a)
	rec, _, err := readTuned(dir, name, a)
	if errors.Is(err, os.ErrNotExist) {
		var foreign bool
		if rec, foreign, _ = readTuned(dir, sharedName(a), a); !foreign {
			name = sharedName(a)
		}
	}
	return name, rec
}

// remember records the attributes before ADD, also if only sysctls are set: the record shows GET
// that the attachment had no DEL yet. Values that an earlier ADD has recorded for this interface
// stay; the record of an interface that the attachment has lost is replaced. It returns the record
// and its name.
func (c *conf) remember(op *chained.Op, before attributes) (name string, rec former, err error) {
	if !c.sets() {
		return "", former{}, nil
	}
	id, err := op.ID()
	if err != nil {
		return "", former{}, err
	}
	name, old := findTuned(op.Dir, op.Attachment)
	if old != nil && before.empty() && (old.SameNS(id) || old.LinkID == record.LinkID{}) {
		return name, old.Data, nil
	}
	rec.attributes = before
	// a record without an interface belongs to this one if that is tuned already
	if old != nil && (old.LinkID == id || old.LinkID == record.LinkID{} && c.link.change(op.Link).empty()) {
		rec = former{old.Data.withMissing(before), old.Data.Sysctls}
	}
	if err := chained.WriteRecord(op, name, rec); err != nil {
		return "", former{}, fmt.Errorf("former attributes of %s: %w", op.IfName, err)
	}
	return name, rec, nil
}

// rememberForms adds to the record what CHECK is to find in place of the configured values.
func (f former) rememberForms(op *chained.Op, name string, forms map[string]string) error {
	if len(forms) == 0 {
		return nil
	}
	if f.Sysctls == nil {
		f.Sysctls = forms
	}
	maps.Copy(f.Sysctls, forms)
	if err := chained.WriteRecord(op, name, f); err != nil {
		return fmt.Errorf("sysctls of %s: %w", op.IfName, err)
	}
	return nil
}

// Known looks for a record under both names. An attachment with settings but without a record was
// deleted: its sysctls stay, and do not show this.
func (c *conf) Known(op *chained.Op) (bool, error) {
	_, _, err := readTuned(op.Dir, record.Name(op.Attachment), op.Attachment)
	if err != nil {
		_, _, err = readTuned(op.Dir, sharedName(op.Attachment), op.Attachment)
	}
	if err != nil && c.sets() {
		return false, spec.Errorf(spec.CodeUnknown, "no attachment %s is known", op.Attachment).WithDetails("%s has no record of it", op.Dir)
	}
	return err == nil, nil
}

// Release restores the former attributes of the link, if it still exists and belongs to the
// attachment, and deletes the shared record. Sysctls stay: those of the interface end with it, and
// another attachment of the namespace may have set the others too.
func (c *conf) Release(op *chained.Op) error {
	dir, a := op.Dir, op.Attachment
	rec, _, err := readTuned(dir, record.Name(a), a)
	shared, foreign, sharedErr := readTuned(dir, sharedName(a), a)
	if errors.Is(err, os.ErrNotExist) {
		rec, err = shared, sharedErr
	}
	if err == nil {
		var other bool
		other, err = restoreTuned(op, rec)
		// a record without an owner belongs to the owner of the interface
		foreign = foreign || other && rec.Attachment == spec.Attachment{}
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		// the link is about to be deleted, and a second DEL would fail too
		op.Warn("former attributes of %s: %v", op.IfName, err)
	}
	if foreign {
		return nil
	}
	return dir.Remove(sharedName(a))
}

// restoreTuned restores the link, if it still exists; other reports that it belongs to another
// attachment.
func restoreTuned(op *chained.Op, rec *formerRecord) (other bool, err error) {
	if op.Link == nil || rec.Data.empty() {
		return false, nil
	}
	own, err := op.Owns(&rec.Head)
	if err == nil && !own {
		other, err = op.LabelledOther()
	}
	if err != nil || !own {
		return other, err
	}
	if id, err := op.ID(); err != nil || rec.LinkID != id && rec.LinkID != (record.LinkID{}) {
		return false, err // the record is of a former interface of the attachment
	}
	return false, errors.Join(restore(op, rec.Data.attributes), moveGuardTo(op.Context(), op, rec.Data.MAC))
}
