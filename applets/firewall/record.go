package firewall

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/cnibox/cnibox/applets/chained"
	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/spec"
)

// dataDir is in /run, since rules end with the boot.
const dataDir = "/run/cnibox/firewall"

// The rules of an attachment in CNI-FORWARD are on record. CHECK and DEL find them by their handles
// among those of all containers. Without a record, or where another program has added the rules
// again, they read the whole chain.
type rules struct {
	Handles nft.RuleHandles `json:"handles"`

	stored nft.RuleHandles // as in the file; nil: no file
}

// readRules returns the attachment's rules on record, or none.
func readRules(op *chained.Op) *rules {
	rec := record.Find[rules](op.Dir, op.Attachment)
	if rec == nil || rec.Data.Handles == nil {
		return &rules{Handles: nft.RuleHandles{}}
	}
	rec.Data.stored = maps.Clone(rec.Data.Handles)
	return &rec.Data
}

// own returns those of the addresses of prevResult that ADD has accepted: later plugins of the chain may
// have added others. Without a record that is not known, nor with a backend that writes none: an earlier ADD may have
// left that of another.
func (p *plan) own(recorded *rules) []netip.Addr {
	if recorded.stored == nil || p.firewalld || p.ownTable {
		return p.ips
	}
	return slices.DeleteFunc(p.ips, func(ip netip.Addr) bool { _, known := recorded.stored[ip]; return !known })
}

// setHandles passes the handles on record to the update, which allows these addresses.
func (recorded *rules) setHandles(op *chained.Op, x *nft.Tx, ips ...netip.Addr) {
	x.Handles(recorded.Handles, op.Call.Verb == spec.Add && recorded.stored == nil, ips...)
}

// write stores the handles of the rules that the update has found and added.
func (recorded *rules) write(op *chained.Op) error {
	switch {
	case maps.EqualFunc(recorded.Handles, recorded.stored, slices.Equal):
		return nil
	case len(recorded.Handles) == 0:
		return op.Dir.Remove(record.Name(op.Attachment))
	}
	rec := record.Record[rules]{Head: record.Head{Attachment: op.Attachment}, Data: *recorded}
	return rec.Write(op.Dir)
}
