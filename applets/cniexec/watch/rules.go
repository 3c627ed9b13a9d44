package watch

import (
	"context"
	"time"

	"github.com/cnibox/cnibox/nft"
)

// partPause is the time between the deletion of a part of the rule set and the search for an
// attachment that lacks it: DEL of a runtime deletes elements before the link and the entry.
const partPause = time.Second

// rulesLost is the event of a rule set that has lost something.
const rulesLost = "rules of cnibox were deleted"

// watchRules reports what the rule set loses, until ctx ends: what no verb deletes at once, other
// parts if an attachment that is alive lacks them.
func (w *Watch) watchRules(ctx context.Context, next func(context.Context) (nft.Loss, error), event func(why string)) error {
	parts := make(chan []nft.Part)
	go w.judge(ctx, parts, event)
	for {
		loss, err := next(ctx)
		if err != nil {
			return err
		}
		if loss.Base { // the reload restores the parts as well
			event(rulesLost)
			continue
		}
		select {
		case parts <- loss.Parts:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// judge reports deleted parts that an attachment lacks. Each waits for partPause at least, and
// those of attachments with which a verb is at work for its end.
func (w *Watch) judge(ctx context.Context, deleted <-chan []nft.Part, event func(why string)) {
	var fresh, old []nft.Part
	var due <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case parts := <-deleted:
			fresh = append(fresh, parts...)
		case <-due:
			due = nil
			var busy []nft.Part
			if len(old) > 0 {
				var lacking bool
				if lacking, busy = w.Lacking(old); lacking {
					event(rulesLost)
				}
			}
			fresh, old = nil, append(busy, fresh...)
		}
		if due == nil && len(fresh)+len(old) > 0 {
			due = time.After(partPause)
		}
	}
}
