package applets

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"cnibox/applets/attach"
	"cnibox/nft"
	"cnibox/rtnl"
	"cnibox/spec"
)

// masqConf are the keys with which bridge and ptp masquerade what leaves their network.
// The backend is the reference's choice of a tool; here it is nftables, without one.
type masqConf struct {
	IPMasq        bool   `json:"ipMasq"`
	IPMasqBackend string `json:"ipMasqBackend"`
}

// checkBackend refuses what the reference refuses.
// An empty one is its choice by what is installed.
func (c *masqConf) checkBackend() error {
	switch c.IPMasqBackend {
	case "", "iptables", "nftables":
		return nil
	}
	return fmt.Errorf(`unknown ipmasq backend %q: "ipMasqBackend" is "iptables" or "nftables"`, c.IPMasqBackend)
}

// warnBackend says where the rules are that an administrator might look for with iptables.
func (c *masqConf) warnBackend(op *attach.Op) {
	if c.IPMasq && c.IPMasqBackend == "iptables" {
		op.Warn(`"ipMasqBackend" iptables: the rules are made with nftables`)
	}
}

// addMasquerade masquerades the result's addresses, in one transaction.
// kinds is what the plugin may own besides, which is released with it.
func (c *masqConf) addMasquerade(ctx context.Context, op *attach.Op, kinds []nft.Kind) error {
	if !c.IPMasq || len(op.Result.IPs) == 0 {
		return nil
	}
	table := nft.Open(rtnl.Host())
	op.Undo("masquerading", func(ctx context.Context) error { return unrule(ctx, op, table, kinds) })
	return table.Update(ctx, masquerade(op, op.Result.IPs))
}

// checkMasquerade wants what addMasquerade has made.
func (c *masqConf) checkMasquerade(op *attach.Op) error {
	own := op.Own()
	if !c.IPMasq || len(own) == 0 {
		return nil
	}
	err := nft.Open(rtnl.Host()).Check(masquerade(op, own))
	if err = orReference(err, op.Attachment, nft.KindMasquerade); err != nil {
		return attach.Mismatch("masquerading: %w", err)
	}
	return nil
}

// masquerade says for ADD and CHECK what the rule set is to have.
// One function for both, so that CHECK looks for what ADD has made.
func masquerade(op *attach.Op, ips []spec.IP) func(*nft.Tx) error {
	return func(x *nft.Tx) error {
		for _, ip := range ips {
			x.Masquerade(op.Attachment, ip.Address)
		}
		return nil
	}
}

// release gives back what the attachment owns in the rule set.
// It needs nothing but the attachment's names; what is not there is fine.
func release(ctx context.Context, op *attach.Op, kinds []nft.Kind) error {
	return nft.Open(rtnl.Host()).Update(ctx, func(x *nft.Tx) error {
		x.Release(op.Attachment, kinds...)
		return nil
	})
}

// unrule is release for an ADD that failed: tables that it has made go too.
func unrule(ctx context.Context, op *attach.Op, table *nft.Table, kinds []nft.Kind) error {
	return errors.Join(release(ctx, op, kinds), table.Prune(ctx))
}

// collectRules gives back what stale attachments own in the rule set, and what the
// reference made for them as far as its rules name the owner.
func collectRules(ctx context.Context, op *attach.Op, kinds []nft.Kind) error {
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

// withoutIPv6 says what the kernel's EACCES for an address of a link of the host means.
// The code is 50.
func withoutIPv6(err error, link string) error {
	if !errors.Is(err, unix.EACCES) {
		return err
	}
	return spec.Errorf(spec.CodeNotReady, "IPv6 is off on %s: set net/ipv6/conf/%s/disable_ipv6 to 0 on the host, for a new link that of default, or have \"ipam\" give no IPv6 address: %w", link, link, err)
}

// skipDAD has the host's link use its link-local address at once.
func skipDAD(op *attach.Op, name string) error {
	return rtnl.Host().SetSysctls(rtnl.Sysctl{Key: "net/ipv6/conf/" + name + "/accept_dad", Value: "0", Optional: true})
}

// switchForwarding makes the host forward for the families of the result that have a
// gateway: last in an ADD, since others may need it as soon as it is on. unused
// calls its argument if none does, for an ADD that fails.
func switchForwarding(op *attach.Op, unused func(restore func() error) error) error {
	for _, s := range forwarding(op.Result.IPs) {
		old, err := rtnl.Host().Sysctl(s.Key)
		if err == nil && old == s.Value {
			continue
		}
		err = rtnl.Host().SetSysctls(s)
		if errors.Is(err, unix.EROFS) {
			return spec.Errorf(spec.CodeNotReady, "forwarding is off, and cannot be switched on from here: set %s to 1 on the host: %w", s.Key, err)
		}
		if err != nil {
			return err
		}
		op.Undo(s.Key, func(context.Context) error {
			return unused(func() error { return rtnl.Host().SetSysctl(s.Key, old) })
		})
	}
	return nil
}

// checkForwarding wants it on. It counts as on if it cannot be read: a family that
// the kernel lacks.
func checkForwarding(op *attach.Op) error {
	for _, s := range forwarding(op.Own()) {
		if v, err := rtnl.Host().Sysctl(s.Key); err == nil && v == "0" {
			return attach.Mismatch("forwarding is off: %s is 0", s.Key)
		}
	}
	return nil
}

// forwarding are the switches for the families that have a gateway.
// They are the host's and never taken back, as in the reference: others may need them.
func forwarding(ips []spec.IP) []rtnl.Sysctl {
	var v4, v6 bool
	for _, ip := range ips {
		v4 = v4 || ip.Gateway.Is4()
		v6 = v6 || ip.Gateway.Is6()
	}
	var all []rtnl.Sysctl
	if v4 {
		all = append(all, rtnl.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"})
	}
	if v6 {
		all = append(all, rtnl.Sysctl{Key: "net/ipv6/conf/all/forwarding", Value: "1"})
	}
	return all
}

// hasAddr looks for an address, host bits and all, among those of a link.
func hasAddr(list []rtnl.Addr, p netip.Prefix) bool {
	for _, a := range list {
		if a.Prefix == p {
			return true
		}
	}
	return false
}
