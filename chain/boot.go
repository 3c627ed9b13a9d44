package chain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/spec"
)

// DeleteEarlier runs DEL for the attachments of earlier boots, on all networks, and returns the
// deleted ones. An entry of another tool has no boot ID; it is of an earlier boot if it was written
// before this boot and its namespace does not exist: elsewhere is asked which of the namespaces that
// are not at their paths may exist.
func (r *Runner) DeleteEarlier(ctx context.Context, elsewhere func([]*Entry) []*Entry) (deleted []spec.Attachment, err error) {
	entries, _, unread := r.Entries()
	began, err := bootTime()
	var kept, guessed []*Entry
	for _, e := range entries {
		if e.SameBoot() && e.BootID == "" && e.Gone() && e.Written().Before(began) {
			guessed = append(guessed, e)
		}
	}
	if len(guessed) > 0 {
		kept = elsewhere(guessed)
	}
	entries = slices.DeleteFunc(entries, func(e *Entry) bool {
		return e.SameBoot() && !slices.Contains(guessed, e) || slices.Contains(kept, e)
	})
	deleted, failed := (&deleting{Runner: r.Once(), list: &List{}}).run(ctx, entries)
	return deleted, errors.Join(unread, err, failed)
}

// bootTime returns when the machine was started, by the current clock.
func bootTime() (time.Time, error) {
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return time.Time{}, fmt.Errorf("time since the boot: %w", err)
	}
	return time.Now().Add(-time.Duration(up.Nano())), nil
}

// Prepare makes what the attachments of a network share on the host, such as a bridge, and reports
// whether the network shares anything; its IPAM plugin frees the leases of earlier boots. It skips
// external plugins.
func (r *Runner) Prepare(ctx context.Context, l *List) (shares bool, err error) {
	if err := spec.CheckNetworkName(l.Name); err != nil {
		return false, err
	}
	unlock, err := r.Cache.lockNetwork(ctx, l.Name, false)
	if err != nil {
		return false, err
	}
	defer unlock()
	for _, p := range l.Plugins {
		made, err := r.prepare(ctx, l, p)
		shares = shares || made
		if err == nil && p.IPAM != "" {
			p.Type = p.IPAM
			_, err = r.prepare(ctx, l, p)
		}
		if err != nil {
			return shares, err
		}
	}
	return shares, nil
}

// prepare runs Prepare of a plugin that has one.
func (r *Runner) prepare(ctx context.Context, l *List, p Plugin) (has bool, err error) {
	builtIn, err := r.Invoker.Find(p.Type)
	if err != nil || builtIn == nil || builtIn.Prepare == nil {
		return false, nil // STATUS reports a missing plugin
	}
	var t RuntimeConf
	defer r.begin(&t, spec.Attachment{})()
	_, err = r.run(ctx, spec.Prepare, l, &p, t, nil)
	return true, err
}
