package chain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/spec"
)

// DeleteEarlier runs DEL for the attachments of earlier boots, on all networks, and returns
// those that are gone. An entry of another tool, which has no ID of its boot, is of an earlier
// one if it was written before this one began and its namespace does not exist.
func (r *Runner) DeleteEarlier(ctx context.Context) (deleted []spec.Attachment, err error) {
	entries, unread := r.Entries()
	began, err := bootTime()
	entries = slices.DeleteFunc(entries, func(e *Entry) bool {
		return e.SameBoot() && (e.BootID != "" || !e.Gone() || !e.Written().Before(began))
	})
	deleted, failed := (&deleting{Runner: r.Once(), list: &List{}}).run(ctx, entries)
	return deleted, errors.Join(unread, err, failed)
}

// bootTime is when the machine was started, by the clock as it is now.
func bootTime() (time.Time, error) {
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return time.Time{}, fmt.Errorf("time since the boot: %w", err)
	}
	return time.Now().Add(-time.Duration(up.Nano())), nil
}

// Prepare makes what the attachments of a network share on the host, as a bridge, and returns
// whether there is any such thing; its IPAM plugin frees what earlier boots have left. Plugins of
// other programs are left out.
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

// prepare does it for a plugin that has something to prepare.
func (r *Runner) prepare(ctx context.Context, l *List, p Plugin) (has bool, err error) {
	verbs, err := r.Invoker.Find(p.Type)
	if err != nil || verbs == nil || verbs.Prepare == nil {
		return false, nil // a missing plugin is STATUS's to report
	}
	_, err = r.run(ctx, spec.Prepare, l, &p, Target{}, nil)
	return true, err
}
