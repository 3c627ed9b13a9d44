package chained

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/frame"
	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/internal/flock"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// An Op is one verb on one attachment. op.Link is as it was when it was opened.
type Op struct {
	frame.Op
	Dir     record.Dir
	Invalid bool // the configuration is invalid (DEL, GET and GC)
	Foreign bool // the interface belongs to another attachment; see [Op.Owned]
	Kept    bool // Release has written or deleted the record itself

	unlock func() // see Lock; nil: not locked
}

// open opens what is needed. missingCode is that of OpenLink.
func (op *Op) open(need Need, missingCode int) error {
	switch need {
	case NeedLink:
		return op.OpenLink(missingCode)
	case NeedPresent:
		return op.OpenLink(0)
	case NeedNS:
		ns, err := op.Call.OpenNS() // without a socket: the settings need none
		op.NS, op.Link = ns, &rtnl.Link{}
		return err
	}
	return nil
}

// openLocked is open for verbs that change the namespace.
func (op *Op) openLocked(need Need, missingCode int) error {
	if err := op.open(need, missingCode); err != nil || op.NS == nil {
		return err
	}
	return op.Lock()
}

// Lock prevents others, including the reference's sbr, from changing the rules of the namespace
// until Unlock. It is an flock(2) on the namespace itself. The code is 11 if others hold it too
// long.
func (op *Op) Lock() error {
	// Opened anew, since a flock(2) belongs to the open file, which the call shares with others.
	ns, err := netns.Open(fmt.Sprintf("/proc/thread-self/fd/%d", op.NS.FD()))
	if err != nil {
		return err
	}
	unlock, err := flock.Wait(op.Context(), ns.FD(), unix.LOCK_EX)
	switch {
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled):
		return spec.Errorf(spec.CodeTryAgain, "lock of the network namespace: %w", err)
	case err != nil:
		return fmt.Errorf("lock of the network namespace: %w", err)
	}
	op.unlock = unlock
	return nil
}

// Unlock ends Lock, if there was one.
func (op *Op) Unlock() {
	if op.unlock != nil {
		op.unlock()
		op.unlock = nil
	}
}

// Record writes the record of an attachment that stores no other data, before the first change.
func (op *Op) Record() error { return WriteRecord(op, record.Name(op.Attachment), struct{}{}) }

// Owned reports whether DEL may change the interface, see [Op.Owns]. If not, it sets op.Link
// to nil.
func (op *Op) Owned(rec *record.Head) (bool, error) {
	hasLink := op.Link != nil
	own, err := op.Owns(rec)
	if !own {
		op.Foreign, op.Link = hasLink, nil
	}
	return own, err
}
