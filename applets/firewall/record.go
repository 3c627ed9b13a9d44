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

// A rules is the record of an attachment with rules in CNI-FORWARD. By their handles CHECK and DEL find
// them among those of all containers. Without it, or where another program has made them anew, these
// read the chain.
type rules struct {
	record.Record[handles]
	stored nft.RuleHandles // what the file has; nil: there is none
}

type handles struct {
	Handles nft.RuleHandles `json:"handles"`
}

// readRules returns the record of the attachment; without one it is empty.
func readRules(op *chained.Op) *rules {
	rec := record.Of[handles](op.Dir, op.Attachment)
	if rec == nil || rec.Data.Handles == nil {
		return &rules{Record: record.Record[handles]{Head: record.Head{Attachment: op.Attachment}, Data: handles{nft.RuleHandles{}}}}
	}
	return &rules{*rec, maps.Clone(rec.Data.Handles)}
}

// plan tells the update of the record.
func (rec *rules) plan(op *chained.Op, x *nft.Tx) {
	x.Handles(rec.Data.Handles, op.Call.Verb == spec.Add && rec.stored == nil)
}

// write stores what the update has found and made.
func (rec *rules) write(op *chained.Op) error {
	switch name := record.Name(op.Attachment); {
	case maps.EqualFunc(rec.Data.Handles, rec.stored, slices.Equal):
		return nil
	case len(rec.Data.Handles) == 0:
		return op.Dir.Remove(name)
	default:
		return op.Dir.Write(name, &rec.Record)
	}
}
