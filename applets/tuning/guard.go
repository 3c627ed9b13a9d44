package tuning

import (
	"context"
	"net"

	"github.com/cnibox/cnibox/applets/chained"
	"github.com/cnibox/cnibox/applets/netfilter"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/spec"
)

// moveGuard lets the container send from its new MAC address alone, where macspoofchk of bridge has let it send from
// another: without that the container would be cut off.
func moveGuard(ctx context.Context, op *chained.Op, mac net.HardwareAddr) error {
	table := op.Rules()
	held, err := table.Owned(op.Attachment, nft.KindMACGuard)
	if netfilter.IsMissing(err) {
		return nil
	}
	var port string
	for _, e := range held {
		if e.MAC() != nil && e.MAC().String() != mac.String() {
			port = e.Link()
		}
	}
	if err != nil || port == "" {
		return err
	}
	return table.Update(ctx, func(x *nft.Tx) error {
		x.Release(op.Attachment, nft.KindMACGuard)
		x.GuardMAC(op.Attachment, port, mac)
		return nil
	})
}

// moveGuardTo is moveGuard for a MAC address as text; empty: none is set.
func moveGuardTo(ctx context.Context, op *chained.Op, mac string) error {
	addr, err := spec.ParseMAC(mac)
	if mac == "" || err != nil {
		return nil
	}
	return moveGuard(ctx, op, addr)
}
