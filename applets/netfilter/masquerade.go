package netfilter

import (
	"context"
	"errors"
	"os"

	"cnibox/applets/attach"
	"cnibox/nft"
	"cnibox/spec"
)

// MasqConf are the keys with which bridge and ptp masquerade what leaves their network.
// Any backend is nftables here.
type MasqConf struct {
	IPMasq        bool   `json:"ipMasq"`
	IPMasqBackend string `json:"ipMasqBackend"`
}

// CheckBackend checks the name of the backend; it may be empty.
func (c *MasqConf) CheckBackend() error {
	switch c.IPMasqBackend {
	case "", "iptables", "nftables":
		return nil
	}
	return spec.KeyErrorf("ipMasqBackend", `unknown ipmasq backend %q: "ipMasqBackend" is "iptables" or "nftables"`, c.IPMasqBackend)
}

// WarnBackend warns an administrator who would look for the rules with iptables.
func (c *MasqConf) WarnBackend(op *attach.Op) {
	if c.IPMasq && c.IPMasqBackend == "iptables" {
		op.Warn(`"ipMasqBackend" iptables: the rules are made with nftables`)
	}
}

// AddMasquerade masquerades the result's addresses, in one transaction.
// kinds are those that the plugin may own, which a failed ADD releases.
func (c *MasqConf) AddMasquerade(ctx context.Context, op *attach.Op, kinds []nft.Kind) error {
	if !c.IPMasq || len(op.Result.IPs) == 0 {
		return nil
	}
	table := nft.Open(op.Call.HostNS())
	op.Undo("masquerading", func(ctx context.Context) error { return Undo(ctx, op, table, kinds) })
	return table.Update(ctx, Masquerade(op, op.Result.IPs))
}

// CheckMasquerade checks for the elements of AddMasquerade.
func (c *MasqConf) CheckMasquerade(op *attach.Op) error {
	own := op.Own()
	if !c.IPMasq || len(own) == 0 {
		return nil
	}
	err := nft.Open(op.Call.HostNS()).Check(Masquerade(op, own))
	if err = OrReference(err, op.Attachment, nft.KindMasquerade); err != nil {
		return attach.Mismatch("masquerading: %w", err)
	}
	return nil
}

// Masquerade returns the elements that ADD adds and CHECK checks for.
func Masquerade(op *attach.Op, ips []spec.IP) func(*nft.Tx) error {
	return func(x *nft.Tx) error {
		for _, ip := range ips {
			x.Masquerade(op.Attachment, ip.Address)
		}
		return nil
	}
}

// Release deletes what the attachment owns in the rule set, by its names alone. Nothing need exist.
func Release(ctx context.Context, op *attach.Op, kinds []nft.Kind) error {
	return nft.Open(op.Call.HostNS()).Update(ctx, func(x *nft.Tx) error {
		x.Release(op.Attachment, kinds...)
		return nil
	})
}

// Undo is Release for an ADD that failed: it also deletes tables that the ADD created.
func Undo(ctx context.Context, op *attach.Op, table *nft.Table, kinds []nft.Kind) error {
	return errors.Join(Release(ctx, op, kinds), table.Prune(ctx))
}

// Collect deletes what stale attachments own in the rule set, and the rules of the reference for
// them, as far as those name the owner.
func Collect(ctx context.Context, op *attach.Op, kinds []nft.Kind) error {
	valid := op.ValidKeys()
	return nft.Open(op.Call.HostNS()).Update(ctx, func(x *nft.Tx) error {
		x.DeleteStale(op.Network, valid, kinds...)
		x.DeleteStaleReference(op.Network, op.Valid, kinds...)
		x.DeleteStaleGuards(func(port string) bool {
			_, err := op.Host.Link(port)
			return !errors.Is(err, os.ErrNotExist)
		})
		return nil
	})
}
