package netfilter

import (
	"context"
	"errors"
	"os"

	"cnibox/applets/attach"
	"cnibox/nft"
	"cnibox/rtnl"
	"cnibox/spec"
)

// masqConf are the keys with which bridge and ptp masquerade what leaves their network.
// The backend is the reference's choice of a tool; here it is nftables, without one.
type MasqConf struct {
	IPMasq        bool   `json:"ipMasq"`
	IPMasqBackend string `json:"ipMasqBackend"`
}

// checkBackend refuses what the reference refuses.
// An empty one is its choice by what is installed.
func (c *MasqConf) CheckBackend() error {
	switch c.IPMasqBackend {
	case "", "iptables", "nftables":
		return nil
	}
	return spec.KeyErrorf("ipMasqBackend", `unknown ipmasq backend %q: "ipMasqBackend" is "iptables" or "nftables"`, c.IPMasqBackend)
}

// warnBackend says where the rules are that an administrator might look for with iptables.
func (c *MasqConf) WarnBackend(op *attach.Op) {
	if c.IPMasq && c.IPMasqBackend == "iptables" {
		op.Warn(`"ipMasqBackend" iptables: the rules are made with nftables`)
	}
}

// addMasquerade masquerades the result's addresses, in one transaction.
// kinds is what the plugin may own besides, which is released with it.
func (c *MasqConf) AddMasquerade(ctx context.Context, op *attach.Op, kinds []nft.Kind) error {
	if !c.IPMasq || len(op.Result.IPs) == 0 {
		return nil
	}
	table := nft.Open(rtnl.Host())
	op.Undo("masquerading", func(ctx context.Context) error { return Undo(ctx, op, table, kinds) })
	return table.Update(ctx, Masquerade(op, op.Result.IPs))
}

// checkMasquerade wants what addMasquerade has made.
func (c *MasqConf) CheckMasquerade(op *attach.Op) error {
	own := op.Own()
	if !c.IPMasq || len(own) == 0 {
		return nil
	}
	err := nft.Open(rtnl.Host()).Check(Masquerade(op, own))
	if err = OrReference(err, op.Attachment, nft.KindMasquerade); err != nil {
		return attach.Mismatch("masquerading: %w", err)
	}
	return nil
}

// masquerade says for ADD and CHECK what the rule set is to have.
// One function for both, so that CHECK looks for what ADD has made.
func Masquerade(op *attach.Op, ips []spec.IP) func(*nft.Tx) error {
	return func(x *nft.Tx) error {
		for _, ip := range ips {
			x.Masquerade(op.Attachment, ip.Address)
		}
		return nil
	}
}

// release gives back what the attachment owns in the rule set.
// It needs nothing but the attachment's names; what is not there is fine.
func Release(ctx context.Context, op *attach.Op, kinds []nft.Kind) error {
	return nft.Open(rtnl.Host()).Update(ctx, func(x *nft.Tx) error {
		x.Release(op.Attachment, kinds...)
		return nil
	})
}

// unrule is release for an ADD that failed: tables that it has made go too.
func Undo(ctx context.Context, op *attach.Op, table *nft.Table, kinds []nft.Kind) error {
	return errors.Join(Release(ctx, op, kinds), table.Prune(ctx))
}

// collectRules gives back what stale attachments own in the rule set, and what the
// reference made for them as far as its rules name the owner.
func Collect(ctx context.Context, op *attach.Op, kinds []nft.Kind) error {
	valid := op.ValidKeys()
	return nft.Open(rtnl.Host()).Update(ctx, func(x *nft.Tx) error {
		x.DeleteStale(op.Network, valid, kinds...)
		x.DeleteStaleReference(op.Network, op.Valid, kinds...)
		x.DeleteStaleGuards(func(port string) bool {
			_, err := op.Host.Link(port)
			return !errors.Is(err, os.ErrNotExist)
		})
		return nil
	})
}
