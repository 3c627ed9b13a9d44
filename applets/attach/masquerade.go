package attach

import (
	"context"
	"errors"
	"os"

	"github.com/cnibox/cnibox/applets/netfilter"
	"github.com/cnibox/cnibox/internal/session"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/spec"
)

// MasqConf are the keys of masquerading for packets that leave the network. Every backend is
// nftables here.
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
func (c *MasqConf) WarnBackend(op *Op) {
	if c.IPMasq && c.IPMasqBackend == "iptables" {
		op.Warn(`"ipMasqBackend" iptables: the rules are made with nftables`)
	}
}

// Masquerade adds the elements for addresses of the attachment, if masquerading is configured.
func (c *MasqConf) Masquerade(op *Op, ips []spec.IP, x *nft.Tx) {
	if !c.IPMasq {
		return
	}
	for _, ip := range ips {
		x.Masquerade(op.Attachment, ip.Address)
	}
}

// AddMasquerade masquerades the result's addresses in one transaction.
func (c *MasqConf) AddMasquerade(op *Op) error {
	if !c.IPMasq || len(op.Result.IPs) == 0 {
		return nil
	}
	return op.AddRules(op.Call.Session, func(x *nft.Tx) { c.Masquerade(op, op.Result.IPs, x) }, nil)
}

// CheckMasquerade looks for the elements of AddMasquerade.
func (c *MasqConf) CheckMasquerade(op *Op) error {
	addrs := op.OwnAddresses()
	if !c.IPMasq || len(addrs) == 0 {
		return nil
	}
	err := op.Rules().Check(func(x *nft.Tx) error {
		c.Masquerade(op, addrs, x)
		return nil
	})
	if err = netfilter.OrReference(err, op.Rules(), op.Attachment, nft.KindMasquerade); err != nil {
		return Mismatch("masquerading: %w", err)
	}
	return nil
}

// AddRules adds elements of the attachment in one transaction. A failed ADD releases them, and
// deletes tables that it has created. failed gets the error of the transaction and may run later,
// since the transaction may be shared with other plugins and attachments; nil: the error is returned as it is. s is the
// session of the verb, or its [session.Session.AtOnce].
func (op *Op) AddRules(s *session.Session, add func(*nft.Tx), failed func(error) error) error {
	table := nft.In(s)
	op.Undo("rules", func(ctx context.Context) error {
		err := nft.In(s.AtOnce()).Update(ctx, func(x *nft.Tx) error {
			x.Release(op.Attachment, op.plugin.Rules...)
			return nil
		})
		err = errors.Join(err, table.Prune(ctx))
		if netfilter.IsMissing(err) {
			return nil // there is none
		}
		return err
	})
	fill := func(x *nft.Tx) error {
		add(x)
		return nil
	}
	if failed == nil {
		return table.Update(op.Context(), fill)
	}
	return table.UpdateThen(op.Context(), fill, func(_ context.Context, err error) error {
		if err != nil {
			err = failed(err)
		}
		return err
	})
}

// ReleaseRules deletes the attachment's elements. All may be missing. known has those that prevResult names; nil: the
// sets are read, since nothing is known of them.
func (op *Op) ReleaseRules(known nft.Known) error {
	return op.Rules().Update(op.Context(), func(x *nft.Tx) error {
		x.ReleaseKnown(op.Attachment, known, op.plugin.Rules...)
		return nil
	})
}

// Known names the elements of AddMasquerade for the addresses of prevResult; nil: it has none, as where a later plugin
// has taken them away.
func (c *MasqConf) Known(op *Op) (known nft.Known) {
	for _, ip := range op.Prev.Addresses(op.IfName, nil) {
		known = append(known, nft.KnownMasquerade(ip.Address.Addr())...)
	}
	if !c.IPMasq {
		return known.IfAny()
	}
	return known
}

// collectRules deletes the elements of stale attachments, and the rules of the reference that name
// a stale attachment.
func (op *Op) collectRules() error {
	kinds := op.plugin.Rules
	if kinds == nil {
		return nil
	}
	valid := op.ValidKeys()
	return op.Rules().Update(op.Context(), func(x *nft.Tx) error {
		x.DeleteStale(op.Network, valid, kinds...)
		x.DeleteStaleReference(op.Network, op.Valid, kinds...)
		x.DeleteStaleGuards(func(port string) bool {
			_, err := op.Host.Link(port)
			return !errors.Is(err, os.ErrNotExist)
		})
		return nil
	})
}
