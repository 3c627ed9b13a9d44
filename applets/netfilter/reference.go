package netfilter

import (
	"errors"

	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/spec"
)

// OrReference lets a CHECK pass without our elements if the reference's rules for the attachment
// exist: its container was started before cnibox was installed.
func OrReference(err error, table *nft.Table, a spec.Attachment, kind nft.Kind) error {
	if missing := new(nft.MissingError); !errors.As(err, &missing) {
		return err
	}
	theirs, asked := table.HasReferenceRules(a, kind)
	if asked != nil || theirs {
		return asked
	}
	return err
}
