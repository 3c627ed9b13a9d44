package rtnl

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"cnibox/internal/netns"
	"cnibox/internal/nlconn"
)

// watchSpace is what notifications may wait in, in bytes: a bridge of 1,000 ports that is deleted
// has some 5,000, of 2 KB each.
const watchSpace = 16 << 20

// A Watch gets the kernel's notifications about links.
type Watch struct{ nl *nlconn.Conn }

// WatchLinks begins to watch the links of a namespace. The caller closes the Watch.
func WatchLinks(ns *netns.NS) (*Watch, error) {
	nl, err := nlconn.Listen(ns, unix.NETLINK_ROUTE, unix.RTMGRP_LINK)
	if err != nil {
		return nil, fmt.Errorf("link notifications: %w", err)
	}
	nl.ReceiveSpace(watchSpace)
	return &Watch{nl}, nil
}

// Close ends it.
func (w *Watch) Close() { w.nl.Close() }

// BridgeGone returns when a bridge was deleted, with its name, or without one when there were
// more notifications than the kernel could keep. The error is the context's if that ends first.
func (w *Watch) BridgeGone(ctx context.Context) (name string, err error) {
	for {
		ms, lost, err := w.nl.Notified(ctx)
		if err != nil || lost {
			return "", err
		}
		for _, m := range ms {
			// A message of another family is about the port of a bridge.
			if m.Header.Type != unix.RTM_DELLINK || len(m.Data) < unix.SizeofIfInfomsg || m.Data[0] != unix.AF_UNSPEC {
				continue
			}
			var l Link
			if l.decode(m.Data) == nil && l.Kind == "bridge" {
				return l.Name, nil
			}
		}
	}
}
