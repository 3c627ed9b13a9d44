package nft

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// The base ruleset of a table is the same on every host: sets, fixed chains and their rules. Its
// version is the comment of the only rule of a chain that no packet reaches, because a table's own
// user data cannot be changed. If the version matches, an update sends only elements; a flush of
// the table deletes the version too. Change the version whenever the base ruleset changes. A set
// whose type changes also needs a new name.
const (
	baseVersion  = "base ruleset 5"
	versionChain = "version"
)

// Priorities of the base chains.
//
// Of chains with the same priority, the kernel runs the one registered last first. With dstnat
// itself our host ports would override the more specific service rules of an earlier plugin
// (CVE-2019-9946); ten behind dstnat, our chain runs after them. The guard chain must run before
// connection tracking.
const (
	guardPrio      = -300 // NF_IP_PRI_RAW
	dnatPrio       = -100 + 10
	masqPrio       = 100 + 10
	macPrio        = -300 // NF_BR_PRI_NAT_DST_BRIDGED
	passPrio       = 0    // NF_IP_PRI_FILTER
	natNeeds       = "CONFIG_NFT_NAT, or is older than Linux 5.2, which has nat in tables of family inet"
	inetNeeds      = "CONFIG_NF_TABLES_INET"
	brNeeds        = "CONFIG_NF_TABLES_BRIDGE"
	masqNeeds      = "CONFIG_NFT_MASQ"
	fibNeeds       = "CONFIG_NFT_FIB_INET"
	dnatNeeds      = "CONFIG_NFT_NAT"
	ctNeeds        = "CONFIG_NFT_CT"
	masqAll        = "masquerade-all"
	portsChain     = "ports"
	publishedChain = "published"
	// routerAdvert is ND_ROUTER_ADVERT, RFC 4861 section 4.2.
	routerAdvert  = 134
	policiesChain = "policies"
)

// publishedMark is the bit of the packet mark that records that we translated the destination. Only
// the first packet of a connection passes chains of type nat, and it keeps the bit until
// postrouting. The conntrack state would not do: a service of kube-proxy also translates
// connections, possibly to the same target. Bit 13 belongs to the reference plugins, whose chain
// masquerades every packet that has it.
const publishedMark = 1 << 12

// A chain is one of our chains with all its rules. A base chain is registered at a hook and accepts
// packets that its rules do not decide about; the other chains are only jumped to.
type chain struct {
	name  string
	typ   nftables.ChainType // "": not a base chain
	hook  *nftables.ChainHook
	prio  nftables.ChainPriority
	needs string // kernel options of the chain and its rules
	rules []rule
}

// lib converts the chain for the library.
func (c *chain) lib(family byte) *nftables.Chain {
	l := &nftables.Chain{Table: ours(family), Name: c.name}
	if c.typ != "" {
		l.Type, l.Hooknum, l.Priority, l.Policy = c.typ, c.hook, &c.prio, new(nftables.ChainPolicyAccept)
	}
	return l
}

// newRule converts a rule for the library.
func newRule(family byte, table, chain string, r rule) *nftables.Rule {
	tbl := tableOf(family, table)
	return &nftables.Rule{Table: tbl, Chain: &nftables.Chain{Table: tbl, Name: chain}, Exprs: r}
}

// chainsOf returns the fixed chains of a table; targets of jumps precede the chains that jump to
// them.
func chainsOf(table byte) []chain {
	if table == bridge {
		return []chain{
			{"macs", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, macPrio, brNeeds, append(advertRules(),
				rule{}.meta(expr.MetaKeyIIFNAME, 0).lookup(guardedSet).
					meta(expr.MetaKeyIIFNAME, 0).payload(expr.PayloadBaseLLHeader, etherSourceAt, macLen, ifnameRegs).notIn(macsSet).drop(),
			)},
		}
	}
	local := []rule{rule{}.localDst().jump(portsChain)}
	// The kernel forwards nothing from ::1: a translated connection to ::1 would be lost, and a listener
	// of the host there cut off.
	fromHost := append([]rule{rule{}.family(v6).addr(v6, true).equal(netip.IPv6Loopback().AsSlice()...).verdictReturn()}, local...)
	return []chain{
		{name: masqAll, needs: masqNeeds, rules: []rule{rule{}.masquerade()}},
		{name: condChain(v4, true), needs: dnatNeeds, rules: marked(dnat(hostPorts.condDNAT.v4))},
		{name: condChain(v4, false), needs: dnatNeeds, rules: marked(dnat(anyPorts.condDNAT.v4))},
		{name: condChain(v6, true), needs: dnatNeeds, rules: marked(dnat(hostPorts.condDNAT.v6))},
		{name: condChain(v6, false), needs: dnatNeeds, rules: marked(dnat(anyPorts.condDNAT.v6))},
		{name: portsChain, needs: dnatNeeds, rules: portRules()},
		{name: publishedChain, needs: masqNeeds, rules: hairpinRules()},
		{"guard", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, guardPrio, inetNeeds, guardRules()},
		{"prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, dnatPrio, natNeeds + ", or " + fibNeeds, local},
		{"output", nftables.ChainTypeNAT, nftables.ChainHookOutput, dnatPrio, natNeeds + ", or " + fibNeeds, fromHost},
		{name: policiesChain, rules: policyRules()},
		{"forward", nftables.ChainTypeFilter, nftables.ChainHookForward, passPrio, inetNeeds, forwardRules()},
		{"postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, masqPrio, natNeeds + ", or " + ctNeeds, masqRules()},
	}
}

// advertRules drop router advertisements (RFC 4861) from ports that may not send them, with any
// extension headers and in any VLAN. The kernel has already removed one VLAN tag; the receiver
// removes all tags of VLAN 0. No rule can look into frames with such a tag inside another one, so
// these frames are dropped too.
func advertRules() []rule {
	rules := []rule{rule{}.meta(expr.MetaKeyL4PROTO, 0).equal(unix.IPPROTO_ICMPV6).
		payload(expr.PayloadBaseTransportHeader, icmpTypeAt, 1, 0).equal(routerAdvert).
		meta(expr.MetaKeyIIFNAME, 0).lookup(advertSet).drop()}
	for _, tag := range []uint16{unix.ETH_P_8021Q, unix.ETH_P_8021AD} {
		rules = append(rules, rule{}.meta(expr.MetaKeyPROTOCOL, 0).equal(port16(tag)...).
			meta(expr.MetaKeyIIFNAME, 0).lookup(advertSet).
			payload(expr.PayloadBaseLLHeader, innerVLANAt, 2, 0).mask([]byte{0x0f, 0xff}).equal(0, 0).drop())
	}
	return rules
}

// guardRules drop packets that come from another host and have an address in 127.0.0.0/8. The
// kernel does not drop them with route_localnet, which published ports on 127.0.0.1 need:
// CVE-2020-8558. Answers to such connections pass, since they have real addresses before
// translation.
func guardRules() []rule {
	var rules []rule
	for _, dst := range []bool{false, true} {
		offset := uint32(saddr4At)
		if dst {
			offset = daddr4At
		}
		rules = append(rules, rule{}.family(v4).
			meta(expr.MetaKeyIIFNAME, 0).ifname(expr.CmpOpNeq, "lo").
			payload(expr.PayloadBaseNetworkHeader, offset, 1, 0).equal(127).drop())
	}
	return rules
}

// policyRules drop packets between two bridges with a policy, and packets within an isolated
// bridge. The rule for bridges that allow packets within them comes before the membership rules,
// since a rule cannot compare two names.
func policyRules() []rule {
	pair := func() rule { return rule{}.meta(expr.MetaKeyIIFNAME, 0).meta(expr.MetaKeyOIFNAME, ifnameRegs) }
	return []rule{
		pair().lookup(isolatedSet).drop(),
		pair().lookup(withinSet).verdictReturn(),
		rule{}.meta(expr.MetaKeyIIFNAME, 0).lookup(managedSet).
			meta(expr.MetaKeyOIFNAME, 0).lookup(managedSet).drop(),
	}
}

// forwardRules apply the policy of bridges first, as the reference does, then the administrator's
// chain to packets to or from an owned address. Everything else is accepted; other tables decide
// about it.
func forwardRules() []rule {
	rules := []rule{rule{}.jump(policiesChain)}
	for _, family := range []byte{v4, v6} {
		for _, dst := range []bool{true, false} {
			rules = append(rules, rule{}.family(family).addr(family, dst).
				lookup(allowSet.of(family)))
		}
	}
	return rules
}

// portRules try ports of one address before ports of any address, and ports with conditions, which
// may match the mark, before those without.
func portRules() (rules []rule) {
	for _, sets := range []portSets{hostPorts, anyPorts} {
		var plain []rule
		for _, family := range []byte{v4, v6} {
			rules = append(rules, atPort(sets.condDispatch.of(family)))
			plain = append(plain, dnat(sets.dnat.of(family)))
		}
		rules = append(rules, marked(plain...)...)
	}
	return rules
}

// atPort looks up the destination port in a set of host ports, with the address if the set has
// addresses. The chain that jumps here has already matched a local destination.
func atPort(set *set) rule {
	r := rule{}.family(set.family)
	if set.key == portType {
		return r.port(0).lookup(set)
	}
	return r.addr(set.family, true).port(addrLen(set.family) / 4).lookup(set)
}

// dnat translates ports; if the map has no entry, the rule does not match and evaluation continues
// with the next rule.
func dnat(set *set) rule { return atPort(set).dnat(set.family) }

// marked sets the mark before rules that translate, and clears it if none of them did.
func marked(rules ...rule) []rule {
	return append(append([]rule{rule{}.setMark(publishedMark)}, rules...), rule{}.setMark(0))
}

// condChain returns the name of the fixed chain that translates ports with conditions.
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

// hairpinRules masquerade connections to published ports whose answers would not return through the
// host, and clear the mark, which no later rule needs.
func hairpinRules() []rule {
	rules := []rule{rule{}.setMark(0)}
	for _, family := range []byte{v4, v6} {
		rules = append(rules, atPort(hairpinSet.of(family)))
	}
	return rules
}

// masqRules handle published ports first, then masquerade packets that leave an owned address. They
// never change multicast (224.0.0.0/4, RFC 5771; ff00::/8, RFC 4291).
func masqRules() []rule {
	return []rule{
		rule{}.ct(expr.CtKeySTATUS).mask(native(ipsDstNAT)).cmp(expr.CmpOpNeq, native(0)).
			meta(expr.MetaKeyMARK, 0).mask(native(publishedMark)).cmp(expr.CmpOpNeq, native(0)).
			jump(publishedChain),
		rule{}.family(v4).addr(v4, true).mask([]byte{0xf0, 0, 0, 0}).equal(224, 0, 0, 0).verdictReturn(),
		rule{}.family(v6).payload(expr.PayloadBaseNetworkHeader, daddr6At, 1, 0).equal(0xff).verdictReturn(),
		rule{}.family(v4).addr(v4, false).lookup(masqSet.of(v4)),
		rule{}.family(v6).addr(v6, false).lookup(masqSet.of(v6)),
	}
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

// ensure creates the missing parts of the table, its sets and its fixed chains, and refills the
// chains. Elements stay. Packets in flight see either the old rules or the new ones.
func (t *batch) ensure(table byte) {
	needs := inetNeeds
	if table == bridge {
		needs = brNeeds
	}
	t.Add(step{What: "table " + tableText(table), Needs: needs}).AddTable(ours(table))
	for i, set := range sets() {
		if set.table == table {
			t.Fail(t.Add(step{What: "set " + set.name}).AddSet(set.definition(uint32(i+1)), nil))
		}
	}
	chains := append(chainsOf(table), chain{name: versionChain})
	for i := range chains {
		t.addChain(table, &chains[i])
	}
	for i := range chains {
		t.fill(table, &chains[i])
	}
	version := newRule(table, TableName, versionChain, rule{}.verdictReturn())
	version.UserData = userdata.AppendString(nil, userdata.TypeComment, baseVersion)
	t.Add(step{What: "version of table " + tableText(table)}).AddRule(version)
}

// version returns the version of the installed base ruleset; "" if there is none, or if it was
// flushed.
func (s *sock) version(table byte) (string, error) {
	rules, err := s.rulesOf(table, TableName, versionChain)
	if err != nil || len(rules) == 0 {
		return "", err
	}
	return rules[0].comment, nil
}

// addChain creates the chain without rules if it is missing. If a chain with that name has another
// hook, type or priority, the batch fails (EEXIST).
func (t *batch) addChain(table byte, c *chain) {
	t.Add(step{What: "chain " + c.name + " of table " + tableText(table), Needs: c.needs}).AddChain(c.lib(table))
}

// fill replaces the rules of a chain, which exists at that point of the batch. No packet sees the
// chain empty, since a batch takes effect atomically.
func (t *batch) fill(table byte, c *chain) {
	what := step{What: "rules of chain " + c.name + " of table " + tableText(table), Needs: c.needs}
	t.Add(what).FlushChain(c.lib(table))
	for _, r := range c.rules {
		t.Add(what).AddRule(newRule(table, TableName, c.name, r))
	}
}

// dropChain deletes a chain of the table with its rules; the batch fails (EBUSY) if a rule or an
// element still jumps to it.
func (t *batch) dropChain(table byte, name string) {
	t.Add(step{What: "chain " + name}).DelChain((&chain{name: name}).lib(table))
}
