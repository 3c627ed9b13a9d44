package nft

import (
	"fmt"

	"golang.org/x/sys/unix"

	"cnibox/internal/netlink"
)

// The skeletons are the same on every host and known by a chain whose name has
// the first digits of a hash of all the rest: when it is there with its rule, which
// goes when somebody flushes the table, an update sends only elements. TestSkeletonMark
// tells the name to write here after a change. A set whose type changes needs a new name
// as well.
const (
	markPrefix = "skeleton-"
	inetMark   = markPrefix + "977226bd"
	bridgeMark = markPrefix + "13a28fa0"
)

// Priorities of the base chains.
//
// The kernel runs a chain registered later before others of the same
// priority. With dstnat itself our host ports would so overrule the more
// specific service rules of whoever came first, which was CVE-2019-9946; ten
// behind, they are asked last. The guard must see packets before connection
// tracking does.
const (
	guardPrio  = -300 // NF_IP_PRI_RAW
	dnatPrio   = -100 + 10
	masqPrio   = 100 + 10
	macPrio    = -300 // NF_BR_PRI_NAT_DST_BRIDGED
	passPrio   = 0    // NF_IP_PRI_FILTER
	brPassPrio = -200 // NF_BR_PRI_FILTER_BRIDGED
	natNeeds   = "CONFIG_NFT_NAT, or is older than Linux 5.2, which has nat in tables of family inet"
	inetNeeds  = "CONFIG_NF_TABLES_INET"
	brNeeds    = "CONFIG_NF_TABLES_BRIDGE"
	masqNeeds  = "CONFIG_NFT_MASQ"
	fibNeeds   = "CONFIG_NFT_FIB_INET"
	dnatNeeds  = "CONFIG_NFT_NAT"
	ctNeeds    = "CONFIG_NFT_CT"
	noNeeds    = ""
	masqAll    = "masquerade-all"
	portsChain = "ports"
	published  = "published"
	// routerAdvert is ND_ROUTER_ADVERT, RFC 4861 section 4.2.
	routerAdvert = 134
	policies     = "policies"
)

// publishedMark is the bit of a packet's mark that says that we have translated its
// destination. The first packet of a connection, which alone passes chains of
// type nat, has it from there to postrouting: that the connection was translated, and
// where to, would be true of a service of kube-proxy as well. Bit 13 is that of the
// reference plugins, whose chain would masquerade whatever has it.
const publishedMark = 1 << 12

// A chain is one of our chains with all its rules. A base chain hangs at a hook
// (NF_INET_*, include/uapi/linux/netfilter.h) and lets pass what its rules do not
// decide on; the others are only jumped to.
type chain struct {
	name  string
	hook  uint32
	prio  int32
	typ   string // "": no base chain
	needs string // kernel options of the chain and its rules
	rules []*rule
}

// newRule begins a rule, which matches every packet until expressions are appended.
func newRule() *rule { return &rule{} }

// chainsOf returns the fixed chains of a table; those that others jump to come first.
func chainsOf(table byte) []chain {
	if table == bridge {
		return []chain{{"macs", unix.NF_INET_PRE_ROUTING, macPrio, "filter", brNeeds, append(advertRules(),
			newRule().meta(unix.NFT_META_IIFNAME, 0).lookup(&sets[guardedSet], noRegister, false).
				meta(unix.NFT_META_IIFNAME, 0).
				payload(unix.NFT_PAYLOAD_LL_HEADER, etherSourceAt, macLen, ifnameLen/4).
				lookup(&sets[macsSet], noRegister, true).verdict(toDrop, ""),
		)}, {"isolate", unix.NF_INET_FORWARD, brPassPrio, "filter", brNeeds, isolateRules()}}
	}
	local := []*rule{newRule().localDst().verdict(toJump, portsChain)}
	return []chain{
		{name: masqAll, needs: masqNeeds, rules: []*rule{newRule().masquerade()}},
		{name: condChain(v4, true), needs: dnatNeeds, rules: marked(dnat(v4, condSet, true))},
		{name: condChain(v4, false), needs: dnatNeeds, rules: marked(dnat(v4, condSet, false))},
		{name: condChain(v6, true), needs: dnatNeeds, rules: marked(dnat(v6, condSet, true))},
		{name: condChain(v6, false), needs: dnatNeeds, rules: marked(dnat(v6, condSet, false))},
		{name: portsChain, needs: dnatNeeds, rules: portRules()},
		{name: published, needs: masqNeeds, rules: hairpinRules()},
		{"guard", unix.NF_INET_PRE_ROUTING, guardPrio, "filter", inetNeeds, guardRules()},
		{"prerouting", unix.NF_INET_PRE_ROUTING, dnatPrio, "nat", natNeeds + ", or " + fibNeeds, local},
		{"output", unix.NF_INET_LOCAL_OUT, dnatPrio, "nat", natNeeds + ", or " + fibNeeds, local},
		{name: policies, rules: policyRules()},
		{"forward", unix.NF_INET_FORWARD, passPrio, "filter", inetNeeds, forwardRules()},
		{"postrouting", unix.NF_INET_POST_ROUTING, masqPrio, "nat", natNeeds + ", or " + ctNeeds, masqRules()},
	}
}

// advertRules drop router advertisements (RFC 4861) of ports that may not send any, with
// whatever extension headers, in whatever VLAN. The kernel has taken off one VLAN tag by
// then; the receiver takes off all of VLAN 0, so frames with such a one inside another,
// which no rule looks into, go as well.
func advertRules() []*rule {
	rules := []*rule{newRule().meta(unix.NFT_META_L4PROTO, 0).equal(unix.IPPROTO_ICMPV6).
		payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, icmpTypeAt, 1, 0).equal(routerAdvert).
		meta(unix.NFT_META_IIFNAME, 0).lookup(&sets[advertSet], noRegister, false).verdict(toDrop, "")}
	for _, tag := range []uint16{unix.ETH_P_8021Q, unix.ETH_P_8021AD} {
		rules = append(rules, newRule().meta(unix.NFT_META_PROTOCOL, 0).equal(port16(tag)...).
			meta(unix.NFT_META_IIFNAME, 0).lookup(&sets[advertSet], noRegister, false).
			payload(unix.NFT_PAYLOAD_LL_HEADER, innerVLANAt, 2, 0).mask([]byte{0x0f, 0xff}).equal(0, 0).verdict(toDrop, ""))
	}
	return rules
}

// isolateRules drop frames between an isolated port and any other behind which a
// container can be. Those to and from its gateway's pass; so do those of ports that
// lead out of the host: physical ones, which are of no kind, and these kinds.
func isolateRules() (rules []*rule) {
	for _, from := range []uint32{0, 1} { // to the name, or kind, of the other side
		to := 1 - from
		rules = append(rules, newRule().meta(unix.NFT_META_IIFNAME+from, 0).meta(unix.NFT_META_IIFNAME+to, ifnameLen/4).
			lookup(&sets[gatewaySet], noRegister, false).verdict(toReturn, ""))
		r := newRule().meta(unix.NFT_META_IIFNAME+from, 0).lookup(&sets[isolatedPortSet], noRegister, false)
		for _, kind := range []string{"bond", "team", "vlan"} {
			r.meta(metaIIFKind+to, 0).ifname(unix.NFT_CMP_NEQ, kind) // each anew, as nft would write it
		}
		rules = append(rules, r.verdict(toDrop, ""))
	}
	return rules
}

// guardRules drop what comes from another host and bears an address of
// 127.0.0.0/8. With route_localnet, which published ports on 127.0.0.1 need,
// the kernel itself no longer does: CVE-2020-8558. Answers to such
// connections pass, since before translation they bear real addresses.
func guardRules() []*rule {
	var rules []*rule
	for _, dst := range []bool{false, true} {
		at := uint32(saddr4At)
		if dst {
			at = daddr4At
		}
		rules = append(rules, newRule().family(v4).
			meta(unix.NFT_META_IIFNAME, 0).ifname(unix.NFT_CMP_NEQ, "lo").
			payload(unix.NFT_PAYLOAD_NETWORK_HEADER, at, 1, 0).equal(127).verdict(toDrop, ""))
	}
	return rules
}

// policyRules drop what goes from one bridge with a policy to another, and what
// stays within an isolated one. A bridge within which packets may pass answers
// before its membership is asked, since a rule cannot compare two names.
func policyRules() []*rule {
	pair := func() *rule { return newRule().meta(unix.NFT_META_IIFNAME, 0).meta(unix.NFT_META_OIFNAME, ifnameLen/4) }
	return []*rule{
		pair().lookup(&sets[isolatedSet], noRegister, false).verdict(toDrop, ""),
		pair().lookup(&sets[withinSet], noRegister, false).verdict(toReturn, ""),
		newRule().meta(unix.NFT_META_IIFNAME, 0).lookup(&sets[managedSet], noRegister, false).
			meta(unix.NFT_META_OIFNAME, 0).lookup(&sets[managedSet], noRegister, false).verdict(toDrop, ""),
	}
}

// forwardRules ask the policy of bridges first, as the reference does, then
// the administrator's chain for what goes to an owned address or comes from one.
// Everything else passes: other tables decide on it.
func forwardRules() []*rule {
	rules := []*rule{newRule().verdict(toJump, policies)}
	for _, family := range []byte{v4, v6} {
		for _, dst := range []bool{true, false} {
			rules = append(rules, newRule().family(family).addr(family, dst, 0).
				lookup(setOf(allowSet, family), noRegister, false))
		}
	}
	return rules
}

// portRules try ports of one address before those of any, and those with
// conditions, which may ask for the mark, before those without.
func portRules() (rules []*rule) {
	for _, host := range []bool{true, false} {
		var plain []*rule
		for _, family := range []byte{v4, v6} {
			rules = append(rules, atPort(family, gateSet, host, noRegister))
			plain = append(plain, dnat(family, dnatSet, host))
		}
		rules = append(rules, marked(plain...)...)
	}
	return rules
}

// atPort looks the destination's port up in a set of the family: with the address, or
// whatever that is. That it is one of this host was asked by the chain that jumps here.
func atPort(family byte, place int, host bool, to uint32) *rule {
	r := newRule().family(family)
	if !host {
		return r.port(0).lookup(setOf(place, family), to, false)
	}
	return r.addr(family, true, 0).port(addrLen(family)/4).lookup(setOf(place+hostSets, family), to, false)
}

// dnat translates ports; where the map has none, the rule does not match and the next
// one is asked.
func dnat(family byte, place int, host bool) *rule {
	return atPort(family, place, host, 0).dnat(family)
}

// marked sets the mark for rules that translate, and takes it away again where none
// of them did.
func marked(rules ...*rule) []*rule {
	return append(append([]*rule{newRule().setMark(publishedMark)}, rules...), newRule().setMark(0))
}

// condChain names the fixed chain that translates ports with conditions.
func condChain(family byte, host bool) string {
	name := "cond4"
	if family == v6 {
		name = "cond6"
	}
	if host {
		return name + "-host"
	}
	return name + "-any"
}

// hairpinRules masquerade published ports where answers would not find back. The
// mark has done its duty by then.
func hairpinRules() []*rule {
	rules := []*rule{newRule().setMark(0)}
	for _, family := range []byte{v4, v6} {
		rules = append(rules, newRule().family(family).addr(family, true, 0).port(addrLen(family)/4).
			lookup(setOf(hairpinSet, family), noRegister, false))
	}
	return rules
}

// masqRules ask about published ports, then masquerade what leaves an owned
// address; multicast (224.0.0.0/4, RFC 5771; ff00::/8, RFC 4291) is never touched.
func masqRules() []*rule {
	return []*rule{
		newRule().ct(unix.NFT_CT_STATUS, 0).mask(native(ipsDstNAT)).cmp(unix.NFT_CMP_NEQ, 0, native(0)).
			meta(unix.NFT_META_MARK, 0).mask(native(publishedMark)).cmp(unix.NFT_CMP_NEQ, 0, native(0)).
			verdict(toJump, published),
		newRule().family(v4).addr(v4, true, 0).mask([]byte{0xf0, 0, 0, 0}).equal(224, 0, 0, 0).verdict(toReturn, ""),
		newRule().family(v6).payload(unix.NFT_PAYLOAD_NETWORK_HEADER, daddr6At, 1, 0).equal(0xff).verdict(toReturn, ""),
		newRule().family(v4).addr(v4, false, 0).lookup(setOf(masqSet, v4), noRegister, false),
		newRule().family(v6).addr(v6, false, 0).lookup(setOf(masqSet, v6), noRegister, false),
	}
}

// mark returns the name of the chain that says that the skeleton is there.
func mark(table byte) string {
	if table == bridge {
		return bridgeMark
	}
	return inetMark
}

// markChain is that chain. No packet comes to its rule.
func markChain(table byte) chain {
	return chain{name: mark(table), rules: []*rule{newRule().verdict(toReturn, "")}}
}

// tableText is the name of our table of a family, as nft writes it.
func tableText(table byte) string {
	switch table {
	case inet:
		return "inet " + TableName
	case bridge:
		return "bridge " + TableName
	}
	return fmt.Sprintf("family %d", table)
}

// ensure makes whatever is missing of the table, its sets and its fixed
// chains, and fills the chains anew. Elements stay; so do packets on their
// way, which see the old rules or the new ones.
func (t *batch) ensure(table byte, oldMarks []string) {
	needs := inetNeeds
	if table == bridge {
		needs = brNeeds
	}
	t.add(step{"table " + tableText(table), needs}, unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, table, func(b *netlink.Buf) {
		b.Text(unix.NFTA_TABLE_NAME, TableName)
		b.Net32(unix.NFTA_TABLE_FLAGS, 0)
	})
	for i := range sets {
		if s := &sets[i]; s.table == table {
			t.add(step{"set " + s.name, noNeeds}, unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, table, func(b *netlink.Buf) {
				s.define(b, uint32(i+1))
			})
		}
	}
	chains := append(chainsOf(table), markChain(table))
	for i := range chains {
		t.addChain(table, &chains[i])
	}
	for i := range chains {
		t.fill(table, &chains[i])
	}
	for _, name := range oldMarks {
		t.dropChain(table, name)
	}
}

// addChain makes the chain if it is missing, without rules. Where a chain of that
// name has another hook, type or priority, the batch fails (EEXIST).
func (t *batch) addChain(table byte, c *chain) {
	what := step{"chain " + c.name + " of table " + tableText(table), c.needs}
	t.add(what, unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, table, func(b *netlink.Buf) {
		b.Text(unix.NFTA_CHAIN_TABLE, TableName)
		b.Text(unix.NFTA_CHAIN_NAME, c.name)
		if c.typ == "" {
			return
		}
		b.Nest(unix.NFTA_CHAIN_HOOK, func() {
			b.Net32(unix.NFTA_HOOK_HOOKNUM, c.hook)
			b.Net32(unix.NFTA_HOOK_PRIORITY, uint32(c.prio))
		})
		b.Net32(unix.NFTA_CHAIN_POLICY, accept)
		b.Text(unix.NFTA_CHAIN_TYPE, c.typ)
	})
}

// fill replaces the rules of a chain that exists by then. No packet sees it without
// rules, since a batch comes into force as one.
func (t *batch) fill(table byte, c *chain) {
	what := step{"rules of chain " + c.name + " of table " + tableText(table), c.needs}
	t.add(what, unix.NFT_MSG_DELRULE, 0, table, func(b *netlink.Buf) {
		b.Text(unix.NFTA_RULE_TABLE, TableName)
		b.Text(unix.NFTA_RULE_CHAIN, c.name)
	})
	for _, r := range c.rules {
		t.add(what, unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, table, func(b *netlink.Buf) {
			b.Text(unix.NFTA_RULE_TABLE, TableName)
			b.Text(unix.NFTA_RULE_CHAIN, c.name)
			b.Nest(unix.NFTA_RULE_EXPRESSIONS, func() { *b = append(*b, r.b...) })
		})
	}
}

// dropChain deletes a chain of the table with its rules; one that is still jumped
// to fails the batch (EBUSY).
func (t *batch) dropChain(table byte, name string) {
	t.add(step{"chain " + name, noNeeds}, unix.NFT_MSG_DELCHAIN, 0, table, func(b *netlink.Buf) {
		b.Text(unix.NFTA_CHAIN_TABLE, TableName)
		b.Text(unix.NFTA_CHAIN_NAME, name)
	})
}
