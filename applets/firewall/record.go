package firewall

import (
	"maps"
	"slices"

	"cnibox/applets/chained"
	"cnibox/applets/record"
	"cnibox/nft"
	"cnibox/spec"
)

// dataDir is in /run, since no rule outlives a boot.
const dataDir = "/run/cnibox/firewall"

// The rules in CNI-FORWARD of an attachment are on record. By their handles CHECK and DEL find
// them among those of all containers. Without it, or where another program has made them anew, these
// read the chain.
type rules struct {
	Handles nft.RuleHandles `json:"handles"`

	stored nft.RuleHandles // what the file has; nil: there is none
}

// readRules returns those on record of the attachment; without one there are none.
func readRules(op *chained.Op) *rules {
	rec := record.Find[rules](op.Dir, op.Attachment)
	if rec == nil || rec.Data.Handles == nil {
		return &rules{Handles: nft.RuleHandles{}}
	}
	rec.Data.stored = maps.Clone(rec.Data.Handles)
	return &rec.Data
}

// setHandles passes the handles on record to the update.
func (recorded *rules) setHandles(op *chained.Op, x *nft.Tx) {
	x.Handles(recorded.Handles, op.Call.Verb == spec.Add && recorded.stored == nil)
}

// write stores what the update has found and made.
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
