package doctor

import (
	"context"
	"errors"
	"os"
	"slices"

	"cnibox/applets/cniexec/hint"
	"cnibox/applets/cniexec/inventory"
	"cnibox/chain"
	"cnibox/spec"
)

// Judge runs CHECK of an attachment, unless there is a reason against it.
func Judge(ctx context.Context, runner *chain.Runner, e *chain.Entry) (unchecked string, err error) {
	l, err := e.ListOnce(ctx)
	if err != nil {
		return "", err
	}
	if unchecked = l.Unchecked(); unchecked != "" {
		return unchecked, nil
	}
	return "", runner.Check(ctx, l, chain.Target{ContainerID: e.ContainerID, IfName: e.IfName})
}

// JudgeAll runs CHECK of the attachments that are alive, and notes what it finds. What is detached
// meanwhile is left out. It ends early when ctx does.
func JudgeAll(ctx context.Context, v *inventory.Inventory, check func(context.Context, *inventory.Entry) (unchecked string, err error)) {
	v.Entries = slices.DeleteFunc(v.Entries, func(a *inventory.Entry) bool {
		if a.State != inventory.StateAlive || ctx.Err() != nil {
			return false
		}
		var err error
		a.Unchecked, err = check(ctx, a)
		switch {
		case err == nil && a.Unchecked == "":
			a.Verdict = inventory.VerdictOK
		case err == nil:
		case Deleted(v.Cache, a.Entry):
			return true
		case a.Gone():
			a.State, a.Why = inventory.StateGone, a.NetNSPath()+" is another namespace now"
		case errors.Is(err, os.ErrPermission) || spec.AsError(err).Code == spec.CodeTryAgain:
			a.Unchecked = hint.Reason(err)
		default:
			a.Verdict, a.Fault = inventory.VerdictFault, err
		}
		return false
	})
}

// Deleted reports whether an attachment is not in the cache any more.
func Deleted(cache *chain.Cache, e *chain.Entry) bool {
	now, err := cache.Lookup(e.Attachment())
	return now == nil && errors.Is(err, os.ErrNotExist)
}
