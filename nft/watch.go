package nft

import (
	"context"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"cnibox/internal/netns"
	"cnibox/internal/nlconn"
)

// watchSpace is the receive buffer in bytes: each element of a transaction has one notification of
// some 1 KB.
const watchSpace = 16 << 20

// A Watch receives the kernel's notifications about the rule set.
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

// Close ends the watch.
func (w *Watch) Close() { w.nl.Close() }

// Deleted returns when a transaction has deleted something that plugins made (in our tables, in
// CNI-FORWARD, or in FORWARD of the tables filter), or when the kernel dropped notifications. It
// ignores transactions of programs for which own returns true; own gets the process name (comm, at
// most 15 bytes), empty if the kernel does not report it. The error is the context's if that ends
// first.
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
			case m.Header.Type == nfTables|unix.NFT_MSG_NEWGEN: // the end of the transaction
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

// isOurs reports whether a message is about an object that plugins made. Attribute 1 is the table
// in all messages.
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
