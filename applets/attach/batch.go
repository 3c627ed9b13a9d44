package attach

import (
	"context"
	"sync"

	"cnibox/internal/netns"
	"cnibox/nft"
	"cnibox/spec"
)

// A Batch changes the rules of a list of plugins, or of several attachments, in one transaction. In DEL
// it also deletes their links in one request and releases their leases under one lock. It is a Batch of
// package chain.
type Batch struct {
	host  *netns.NS
	rules nft.Collection
	ends  DelBatch
	did   spec.Attachment // the last one whose rules were reported
	mu    sync.Mutex      // errors are reported one at a time
}

// NewBatch returns a batch for the changes of that number of attachments on a host.
func NewBatch(host *netns.NS, attachments int) *Batch {
	return &Batch{host: host, ends: DelBatch{single: attachments == 1}}
}

// NewRebuilding returns a batch that also fills the chains of the base rulesets again.
func NewRebuilding() *Batch { return &Batch{host: netns.Host(), rules: nft.Collection{Rebuild: true}} }

// Context returns a context that collects updates of the rule set, and the ends of DELs.
func (b *Batch) Context(ctx context.Context, a spec.Attachment, did func(string), failed func(error)) context.Context {
	report := func(err error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		failed(err)
	}
	return b.ends.Collect(b.rules.Collect(ctx, a, func(lacked bool, err error) {
		if lacked && b.did != a {
			b.did = a
			did("rules written")
		}
		if err != nil {
			report(err)
		}
	}), report)
}

// Commit makes the collected changes: the kernel needs some 20 ms to delete links, and the rules change
// at the same time. No address is leased again before its link and its rules are gone.
func (b *Batch) Commit(ctx context.Context) {
	links := make(chan struct{})
	delLinks := b.ends.delLinks(ctx, b.host) // a goroutine may be in another namespace
	go func() {
		defer close(links)
		delLinks()
	}()
	b.rules.Commit(ctx, nft.Open(b.host))
	<-links
	b.ends.Release(ctx)
}
