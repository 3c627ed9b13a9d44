package cniexec

import (
	"context"

	"cnibox/applets/attach"
	"cnibox/chain"
	"cnibox/internal/netns"
	"cnibox/nft"
	"cnibox/spec"
)

// batch changes the rules of several attachments in one transaction. In DEL it also deletes their
// links in one request and releases their leases under one lock.
type batch struct {
	rules nft.Collection
	ends  attach.DelBatch
	did   spec.Attachment // the last one whose rules were reported
}

var _ chain.Batch = (*batch)(nil)

// reloading also fills the chains of the base rulesets again.
func reloading() *batch { return &batch{rules: nft.Collection{Rebuild: true}} }

// Context returns a context that collects updates of the rule set, and the ends of DELs.
func (t *batch) Context(ctx context.Context, a spec.Attachment, did func(string), failed func(error)) context.Context {
	return t.ends.Collect(t.rules.Collect(ctx, a, func(lacked bool, err error) {
		if lacked && t.did != a {
			t.did = a
			did("rules written")
		}
		if err != nil {
			failed(err)
		}
	}), failed)
}

// Commit makes the collected changes. No address is leased again before its link and its rules are
// gone.
func (t *batch) Commit(ctx context.Context) {
	t.ends.DelLinks(ctx)
	t.rules.Commit(ctx, nft.Open(netns.Host()))
	t.ends.Release(ctx)
}
