package nft

import (
	"errors"
	"os"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/nft/internal/wire"
	"github.com/cnibox/cnibox/spec"
)

type step = wire.Step

// A batch collects changes that the kernel applies all together or not at all.
type batch struct {
	wire.Batch
	newTables []byte        // families of our tables that it creates
	filters   []*filterPlan // with its changes of the tables filter
}

// commit sends the batch and waits for the acknowledgements. The error is that of the first
// rejected step.
func (s *sock) commit(t *batch) error {
	err := t.Commit(s.nl)
	var refused *wire.Error
	if errors.As(err, &refused) && strings.HasPrefix(refused.What, "set ") && errors.Is(err, os.ErrExist) {
		refused.Err = spec.Errorf(spec.CodeNotReady, "%w: another program has made one of that name in table %s: delete it", refused.Err, TableName)
	}
	return err
}

func deletes(m netlink.Message) bool {
	switch m.Header.Type {
	case nfTables | unix.NFT_MSG_DELTABLE, nfTables | unix.NFT_MSG_DELRULE, nfTables | unix.NFT_MSG_DELCHAIN, nfTables | unix.NFT_MSG_DELSET, nfTables | unix.NFT_MSG_DELSETELEM:
		return true
	}
	return false
}
