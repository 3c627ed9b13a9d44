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

// Judge runs CHECK of an attachment, unless there is a reason not to.
func Judge(ctx context.Context, runner *chain.Runner, e *chain.Entry) (unchecked string, err error) {
	l, err := e.ListOnce(ctx)
	if err != nil {
		return "", err
	}
	if unchecked = l.Unchecked(); unchecked != "" {
		return unchecked, nil
	}
	return "", runner.Check(ctx, l, chain.RuntimeConf{ContainerID: e.ContainerID, IfName: e.IfName})
}

// JudgeAll runs CHECK of the live attachments, records what it finds, and returns the list without
// those that were detached meanwhile. It ends early when ctx does.
func JudgeAll(ctx context.Context, cache *chain.Cache, list []*inventory.Entry, check func(context.Context, *inventory.Entry) (unchecked string, err error)) []*inventory.Entry {
	detached := map[*inventory.Entry]bool{}
	for _, a := range list {
		if a.State != inventory.StateAlive || ctx.Err() != nil {
			continue
		}
		var err error
		a.Unchecked, err = check(ctx, a)
		switch {
		case err == nil && a.Unchecked == "":
			a.Verdict = inventory.VerdictOK
		case err == nil:
		case Deleted(cache, a.Entry):
			detached[a] = true
		case a.Gone():
			a.State, a.Why = inventory.StateGone, a.NetNSPath()+" is another namespace now"
		case errors.Is(err, os.ErrPermission) || spec.AsError(err).Code == spec.CodeTryAgain:
			a.Unchecked = hint.Reason(err)
		default:
			a.Verdict, a.Fault = inventory.VerdictFault, err
		}
	}
	if len(detached) == 0 {
		return list
	}
	return slices.DeleteFunc(slices.Clone(list), func(a *inventory.Entry) bool { return detached[a] })
}

// Deleted reports whether an attachment was deleted from the cache.
func Deleted(cache *chain.Cache, e *chain.Entry) bool {
	now, err := cache.Lookup(e.Attachment())
	return now == nil && errors.Is(err, os.ErrNotExist)
}
