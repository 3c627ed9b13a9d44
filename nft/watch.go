package nft

import (
	"context"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"cnibox/internal/netns"
	"cnibox/internal/nlconn"
)

// watchSpace is what notifications may wait in, in bytes: each element of a transaction has one,
// which takes some 1 KB.
const watchSpace = 16 << 20

// A Watch gets the kernel's notifications about the rule set.
type Watch struct{ nl *nlconn.Conn }

// WatchRules begins to watch the rule set of a namespace. The caller closes the Watch.
func WatchRules(ns *netns.NS) (*Watch, error) {
	nl, err := nlconn.Listen(ns, unix.NETLINK_NETFILTER, 1<<(unix.NFNLGRP_NFTABLES-1))
	if err != nil {
		return nil, fmt.Errorf("rule set notifications: %w", err)
	}
	nl.ReceiveSpace(watchSpace)
	return &Watch{nl}, nil
}

// Close ends it.
func (w *Watch) Close() { w.nl.Close() }

// Deleted returns when a transaction has deleted something that is ours: in our tables, in CNI-FORWARD
// or in FORWARD of the tables filter; or when there were more notifications than the kernel
// could keep. Transactions of programs that own wants do not count; it gets the name of the
// program's process (comm, at most 15 bytes), empty if the kernel does not report it. The error
// is the context's if that ends first.
func (w *Watch) Deleted(ctx context.Context, own func(program string) bool) error {
	hit := false
	for {
		ms, lost, err := w.nl.Notified(ctx)
		if err != nil || lost {
			return err
		}
		for _, m := range ms {
			switch {
			case len(m.Data) < headerLen:
			case m.Header.Type == nfTables|unix.NFT_MSG_NEWGEN: // which ends the transaction
				const procName = 3 // NFTA_GEN_PROC_NAME, include/uapi/linux/netfilter/nf_tables.h
				if hit && !own(text(m.Data[headerLen:], procName)) {
					return nil
				}
				hit = false
			default:
				hit = hit || deletes(m) && isOurs(m)
			}
		}
	}
}

// isOurs reports whether a message is about something that plugins have made. Attribute 1 is the
// table in all of them.
func isOurs(m netlink.Message) bool {
	attrs := m.Data[headerLen:]
	switch text(attrs, unix.NFTA_RULE_TABLE) {
	case TableName:
		return true
	case filterTable:
	default:
		return false
	}
	chain := ""
	switch m.Header.Type {
	case nfTables | unix.NFT_MSG_DELTABLE:
		return true
	case nfTables | unix.NFT_MSG_DELRULE:
		chain = text(attrs, unix.NFTA_RULE_CHAIN)
	case nfTables | unix.NFT_MSG_DELCHAIN:
		chain = text(attrs, unix.NFTA_CHAIN_NAME)
	}
	return chain == filterChain || chain == filterHook
}
