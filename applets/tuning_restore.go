//go:build !no_tuning

package applets

import (
	"context"
	"errors"
	"fmt"
	"os"

	"cnibox/rtnl"
	"cnibox/spec"
)

// A tuningRecord is the file: the reference ignores the owner.
type tuningRecord struct {
	recordOwner
	tuningLink
}

// foreign tells that the file is another attachment's: "a_b" with "c" has the
// file name of "a" with "b_c". A file without an owner is the reference's.
// Such a file is neither used nor written over.
func (r tuningRecord) foreign(a spec.Attachment) bool {
	return r.ContainerID != "" && (r.ContainerID != a.ContainerID || r.IfName != a.IfName)
}

// remember puts the attributes as they are before ADD on record. What an
// earlier ADD of the attachment has recorded is older, and stays. The function
// returned brings the record back to what it was.
// The reference writes over it, and a DEL then restores what tuning itself has set.
func remember(dir records, a spec.Attachment, before tuningLink) (forget func() error, err error) {
	nothing := func() error { return nil }
	if before.empty() {
		return nothing, nil
	}
	name := recordName(a)
	var old tuningRecord
	forget = func() error { return dir.write(name, old) }
	if dir.read(name, &old) != nil { // none, or nothing that DEL could use
		old = tuningRecord{}
		forget = func() error { return dir.remove(name) }
	}
	if old.foreign(a) {
		return nil, spec.Errorf(spec.CodeBusy, "former attributes of %s: %s is the file of %s of container %s",
			a.IfName, name, old.IfName, old.ContainerID)
	}
	merged := tuningRecord{ownerOf(a), old.tuningLink.or(before)}
	if err := dir.write(name, merged); err != nil {
		return nil, fmt.Errorf("former attributes of %s: %w", a.IfName, err)
	}
	return forget, nil
}

// tuningDel gives the link its former attributes back, if it is still there,
// and forgets them. Sysctls stay: those of the interface go with it, and the
// others are the namespace's, where another attachment may have asked for the same.
// The file goes in any case; the reference leaves it for ever when the link has gone.
func tuningDel(_ context.Context, r *spec.Request) error {
	dir, name := recordsOf(r, tuningDataDir), recordName(r.Attachment)
	var was tuningRecord
	err := dir.read(name, &was)
	switch {
	case err == nil && was.foreign(r.Attachment):
		return nil
	case err == nil:
		err = restoreTuned(r, was.tuningLink)
	case errors.Is(err, os.ErrNotExist):
		err = nil
	}
	if err != nil {
		// The link is about to go, and no second DEL would do better.
		r.Warn("former attributes of %s: %v", r.IfName, err)
	}
	return dir.remove(name)
}

// restoreTuned restores the link, if namespace and link are still there.
// That neither is there is how most containers end.
func restoreTuned(r *spec.Request, was tuningLink) error {
	c, err := openChained(r, spec.CodeUnknown)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, rtnl.ErrNotNS) {
		return nil
	}
	if err != nil {
		return err
	}
	defer c.close()
	return tuned{c}.restore(was)
}

// tuningGC forgets the former attributes of links that are gone.
// Those without an owner are the reference's, and stay.
func tuningGC(_ context.Context, r *spec.Request) error {
	return recordsOf(r, tuningDataDir).keep(r.Network, r.Valid)
}
