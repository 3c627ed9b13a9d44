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
	record.Owner
	Handles nft.RuleHandles `json:"handles"`

	stored nft.RuleHandles // what the file has; nil: there is none
}

// readRules returns the record of the attachment; without one it is empty.
func readRules(op *chained.Op) *rules {
	rec := chained.ReadRecord[rules](op.Dir, op.Attachment)
	if rec == nil || rec.Handles == nil {
		return &rules{Owner: record.OwnerOf(op.Attachment), Handles: nft.RuleHandles{}}
	}
	rec.stored = maps.Clone(rec.Handles)
	return rec
}

// plan tells the update of the record.
func (rec *rules) plan(op *chained.Op, x *nft.Tx) {
	x.Handles(rec.Handles, op.Call.Verb == spec.Add && rec.stored == nil)
}

// write stores what the update has found and made.
func (rec *rules) write(op *chained.Op) error {
	switch name := record.Name(op.Attachment); {
	case maps.EqualFunc(rec.Handles, rec.stored, slices.Equal):
		return nil
	case len(rec.Handles) == 0:
		return op.Dir.Remove(name)
	default:
		return op.Dir.Write(name, rec)
	}
}
