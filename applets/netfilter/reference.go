package netfilter

import (
	"errors"

	"cnibox/nft"
	"cnibox/rtnl"
	"cnibox/spec"
)

// orReference lets a CHECK pass which misses our elements where the reference
// plugins' rules for the attachment are there instead: a container is no worse
// for having been started before cnibox replaced them.
func OrReference(err error, a spec.Attachment, kind nft.Kind) error {
	if missing := new(nft.MissingError); !errors.As(err, &missing) {
		return err
	}
	theirs, asked := nft.Open(rtnl.Host()).Reference(a, kind)
	if asked != nil || theirs {
		return asked
	}
	return err
}
