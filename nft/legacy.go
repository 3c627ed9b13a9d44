package nft

import (
	"bytes"
	"crypto/sha512"
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/nlconn"
	"github.com/cnibox/cnibox/spec"
)

// Names and comments of the rules that the reference plugins (v1.0 and later) make, in the form
// that their DEL searches. Source: pkg/ip, pkg/link, pkg/utils and plugins/meta/portmap of
// containernetworking/plugins.
const (
	oldMasqTable  = "cni_plugins_masquerade" // inet; rules in oldMasqChain
	oldMasqChain  = "masq_checks"
	oldPortTable  = "cni_hostport" // ip and ip6
	oldNATTable   = "nat"          // of iptables-nft, and of macspoofchk in family bridge
	oldMACComment = "macspoofchk-"
	oldMACChain   = "cni-br-iface-"
	oldMasqPrefix = "CNI-"
	oldDNATPrefix = "CNI-DN-"
	oldSNATPrefix = "CNI-SN-"
	oldChainLen   = 28 // bytes, prefix and hash
	oldHashLen    = 16 // hex digits of each half of a comment
)

// leftovers are the reference plugins' rules and chains that a batch deletes. Chains that
// containers share stay.
type leftovers struct {
	read    map[chainID][]installedRule
	rules   []installedRule
	chains  []chainID
	allowed []netip.Addr // whose rules in CNI-FORWARD are deleted
	addrs   [][]byte     // of the attachments, see [Tx.Addresses]
}

// remove deletes rules before chains, since a chain with jumps to it cannot be deleted.
func (l *leftovers) remove(b *batch) {
	for _, r := range l.rules {
		tbl := tableOf(r.family, r.table)
		b.Fail(b.Add(step{What: "rule of chain " + r.chain}).DelRule(&nftables.Rule{Table: tbl, Chain: &nftables.Chain{Table: tbl, Name: r.chain}, Handle: r.handle}))
	}
	for _, c := range l.chains {
		b.Add(step{What: "chain " + c.name}).DelChain(&nftables.Chain{Table: tableOf(c.family, c.table), Name: c.name})
	}
}

// rule plans the deletion of a rule, once: the kernel rejects a batch that deletes an object twice.
func (l *leftovers) rule(r installedRule) {
	equal := func(o installedRule) bool {
		return o.family == r.family && o.table == r.table && o.handle == r.handle
	}
	if !slices.ContainsFunc(l.rules, equal) {
		l.rules = append(l.rules, r)
	}
}

// chain plans the deletion of a chain, once.
func (l *leftovers) chain(c chainID) {
	if !slices.Contains(l.chains, c) {
		l.chains = append(l.chains, c)
	}
}

// oldChain returns the name of the iptables chain of a container on a network; it does not depend
// on the interface.
func oldChain(prefix string, o spec.Attachment) string {
	sum := sha512.Sum512([]byte(o.Network + o.ContainerID))
	return (prefix + hex.EncodeToString(sum[:]))[:oldChainLen]
}

// oldHash is one half of a masquerade rule's comment: of the network, or of the interface with its
// container.
func oldHash(s string) string {
	sum := sha512.Sum512([]byte(s))
	return hex.EncodeToString(sum[:])[:oldHashLen]
}

// oldMasqComment returns the beginning of a masquerade rule's comment.
func oldMasqComment(o spec.Attachment) string {
	return oldHash(o.Network) + "-" + oldHash(o.IfName+":"+o.ContainerID)
}

// Addresses sets the addresses of the attachments to be released. The reference plugins mark some
// rules with the container alone, or with container and network. With addresses, only rules about
// these are deleted, and rules of the container's other interfaces stay. It applies to each later
// Release; without addresses all of the container's rules are deleted, except for those of the
// reference's firewall, which contain nothing but the address.
func (x *Tx) Addresses(ips ...netip.Addr) {
	for _, ip := range ips {
		x.old.addrs = append(x.old.addrs, ip.Unmap().AsSlice())
	}
}

// releaseOld plans the deletion of o's rules from the reference plugins.
func (x *Tx) releaseOld(o spec.Attachment, kinds []Kind) {
	if hasKind(kinds, KindMasquerade) {
		begin := oldMasqComment(o)
		x.oldRules(chainID{inet, oldMasqTable, oldMasqChain}, func(r *installedRule) bool {
			return r.comment == begin || strings.HasPrefix(r.comment, begin+",")
		})
		x.oldIptables("POSTROUTING", oldChain(oldMasqPrefix, o))
	}
	if hasKind(kinds, KindPortMap) {
		isOwned := func(r *installedRule) bool { return r.comment == o.ContainerID && x.concerns(r) }
		for _, family := range []byte{v4, v6} {
			for _, name := range []string{"hostports", "hostip_hostports", "masquerading"} {
				x.oldRules(chainID{family, oldPortTable, name}, isOwned)
			}
		}
		x.oldIptables("CNI-HOSTPORT-DNAT", oldChain(oldDNATPrefix, o))
		x.oldIptables("CNI-HOSTPORT-SNAT", oldChain(oldSNATPrefix, o))
	}
	if hasKind(kinds, KindFirewall) {
		for _, a := range x.old.addrs {
			ip, _ := netip.AddrFromSlice(a)
			x.old.allowed = append(x.old.allowed, ip)
		}
	}
	if hasKind(kinds, KindMACGuard) && x.hasTable(bridge, oldNATTable) {
		id := o.ContainerID + "-" + o.IfName
		x.oldRules(chainID{bridge, oldNATTable, "PREROUTING"}, func(r *installedRule) bool {
			return r.comment == oldMACComment+id
		})
		x.oldChains(chainID{bridge, oldNATTable, oldMACChain + id}, chainID{bridge, oldNATTable, oldMACChain + id + "-mac"})
	}
}

// DeleteStaleReference drops the reference plugins' rules for attachments of the network that are
// not in the valid list, if the rules name the network. Rules of nftables host ports do not; see
// also DeleteStaleGuards.
func (x *Tx) DeleteStaleReference(network string, valid []spec.Attachment, kinds ...Kind) {
	keep := map[string]bool{}
	for _, o := range valid {
		if o.Network != network {
			continue
		}
		for _, prefix := range []string{oldMasqPrefix, oldDNATPrefix, oldSNATPrefix} {
			keep[oldChain(prefix, o)] = true
		}
		keep[oldMasqComment(o)] = true
	}
	named := `name: "` + network + `" id: "`
	if hasKind(kinds, KindMasquerade) {
		begin := oldHash(network) + "-"
		x.oldRules(chainID{inet, oldMasqTable, oldMasqChain}, func(r *installedRule) bool {
			mark, _, _ := strings.Cut(r.comment, ",")
			return strings.HasPrefix(mark, begin) && !keep[mark]
		})
		x.deleteStaleIptables("POSTROUTING", oldMasqPrefix, named, keep)
	}
	if hasKind(kinds, KindPortMap) {
		x.deleteStaleIptables("CNI-HOSTPORT-DNAT", oldDNATPrefix, named, keep)
		x.deleteStaleIptables("CNI-HOSTPORT-SNAT", oldSNATPrefix, named, keep)
	}
}

// DeleteStaleGuards drops the reference's rules of macspoofchk for bridge ports that do not exist.
// The rules name no network, and no packet comes through such a port.
func (x *Tx) DeleteStaleGuards(exists func(port string) bool) {
	x.oldRules(chainID{bridge, oldNATTable, "PREROUTING"}, func(r *installedRule) bool {
		to := r.jump()
		if !strings.HasPrefix(r.comment, oldMACComment) || !strings.HasPrefix(to, oldMACChain) {
			return false
		}
		for _, e := range expressions(r.exprs) {
			if e.name == "cmp" && exists(text(e.data, unix.NFTA_CMP_DATA, unix.NFTA_DATA_VALUE)) {
				return false
			}
		}
		x.oldChains(chainID{bridge, oldNATTable, to}, chainID{bridge, oldNATTable, to + "-mac"})
		return true
	})
}

// concerns reports whether a rule contains one of the addresses, as a compared or a translated
// address, byte by byte. Without known addresses it is true.
func (x *Tx) concerns(r *installedRule) bool {
	if len(x.old.addrs) == 0 {
		return true
	}
	for _, e := range expressions(r.exprs) {
		var v []byte
		switch e.name {
		case "cmp":
			v = nlconn.Attribute(e.data, unix.NFTA_CMP_DATA, unix.NFTA_DATA_VALUE)
		case "immediate":
			v = nlconn.Attribute(e.data, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VALUE)
		}
		if slices.ContainsFunc(x.old.addrs, func(a []byte) bool { return bytes.Equal(a, v) }) {
			return true
		}
	}
	return false
}

// oldRules plans the deletion of a chain's rules that match. It sends no request if the table does
// not exist, as on most hosts.
func (x *Tx) oldRules(c chainID, match func(*installedRule) bool) {
	if !x.hasTable(c.family, c.table) {
		return
	}
	rules := x.rulesAt(c)
	for i := range rules {
		if match(&rules[i]) {
			x.old.rule(rules[i])
		}
	}
}

// rulesAt returns the rules of a chain of the reference, which are read once.
func (x *Tx) rulesAt(c chainID) []installedRule {
	if rules, ok := x.old.read[c]; ok {
		return rules
	}
	rules, err := x.s.rulesOf(c.family, c.table, c.name)
	if err != nil {
		x.fail(err)
	}
	if x.old.read == nil {
		x.old.read = map[chainID][]installedRule{}
	}
	x.old.read[c] = slices.Clip(rules)
	return rules
}

// oldChains plans the deletion of existing chains: deleting one that does not exist would fail the
// batch.
func (x *Tx) oldChains(chains ...chainID) {
	for _, c := range chains {
		ok, _, err := x.s.getChain(c)
		if err != nil {
			x.fail(err)
		}
		if ok {
			x.old.chain(c)
		}
	}
}

// oldIptables plans the deletion of a container's chain in the tables nat of iptables-nft, for both
// families, and of the jumps to it from another chain. If the chain also serves interfaces whose
// addresses are not released, the chain and their jumps stay.
func (x *Tx) oldIptables(from, name string) {
	for _, family := range []byte{v4, v6} {
		if !x.hasTable(family, oldNATTable) {
			continue
		}
		ok, _, err := x.s.getChain(chainID{family, oldNATTable, name})
		if err != nil {
			x.fail(err)
		}
		if !ok {
			continue
		}
		shared := false
		x.oldRules(chainID{family, oldNATTable, from}, func(r *installedRule) bool {
			if r.jump() != name {
				return false
			}
			// Only the jumps from POSTROUTING contain an address.
			if from == "POSTROUTING" && !x.concerns(r) {
				shared = true
				return false
			}
			return true
		})
		if !shared {
			x.old.chain(chainID{family, oldNATTable, name})
		}
	}
}

// deleteStaleIptables plans the deletion of the chains to which rules of a chain jump and whose
// comment names the network, except for those in keep.
func (x *Tx) deleteStaleIptables(from, prefix, named string, keep map[string]bool) {
	for _, family := range []byte{v4, v6} {
		x.oldRules(chainID{family, oldNATTable, from}, func(r *installedRule) bool {
			to := r.jump()
			if len(to) != oldChainLen || !strings.HasPrefix(to, prefix) || keep[to] || !strings.Contains(r.xtComment(), named) {
				return false
			}
			x.old.chain(chainID{family, oldNATTable, to})
			return true
		})
	}
}

// xtComment returns the comment that iptables-nft gave a rule: the data of a match of x_tables,
// struct xt_comment_info, include/uapi/linux/netfilter/xt_comment.h.
func (r *installedRule) xtComment() string {
	for _, e := range expressions(r.exprs) {
		if e.name == "match" && text(e.data, unix.NFTA_MATCH_NAME) == "comment" {
			return text(e.data, unix.NFTA_MATCH_INFO)
		}
	}
	return r.comment
}

// HasReferenceRules reports whether the reference plugins' rules of one kind for o exist: our
// tables have nothing for an attachment that the reference made. It takes no lock. It does not see
// rules of iptables-legacy.
func (t *Table) HasReferenceRules(o spec.Attachment, kind Kind) (bool, error) {
	s, err := t.dial()
	if err != nil {
		return false, err
	}
	defer s.Close()
	x := newTx(s)
	x.releaseOld(o, []Kind{kind})
	return len(x.old.rules)+len(x.old.chains) > 0, x.err
}

// ReferenceFirewall is HasReferenceRules for the rules of the reference's firewall, which contain
// nothing but the address. It reports whether each address has its two rules and whether the chains
// are jumped to; with policed also whether bridges have policies.
func (t *Table) ReferenceFirewall(ips []netip.Addr, admin string, policed bool) (bool, error) {
	s, err := t.dial()
	if err != nil {
		return false, err
	}
	defer s.Close()
	for _, family := range []byte{v4, v6} {
		p := &filterPlan{family: family}
		for _, ip := range ips {
			if familyOf(ip) == family {
				p.allow(allowedAddr{ip: ip, admin: admin})
			}
		}
		if err := p.read(s); err != nil {
			return false, err
		}
		p.missing = slices.DeleteFunc(p.missing, func(r acceptRule) bool { return r.states == dnatState })
		if len(p.allowed) > 0 && (!p.hasForward || p.lacks() != nil || policed && !p.isolates) {
			return false, nil
		}
	}
	return len(ips) > 0, nil
}
