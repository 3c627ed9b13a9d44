package nft

import (
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"cnibox/internal/nlconn"
)

// A Blocker is a chain of another program, at the hook forward, that drops or rejects what none of
// its rules accepts. No accept of another chain overrules that.
type Blocker struct {
	Family       string // as nft(8) has it
	Table, Chain string
	Asks         bool // it jumps to CNI-FORWARD, where the firewall plugin accepts

	in, out []string    // the links of which a rule accepts all; some end with *
	pairs   [][2]string // and those from which it accepts all that goes to another
}

// Lets reports whether the chain accepts all that comes from a link, and all that goes there.
// The name may end with *, as in rules.
func (b *Blocker) Lets(link string) bool {
	return slices.ContainsFunc(b.in, matches(link)) && slices.ContainsFunc(b.out, matches(link))
}

// LetsWithin reports whether the chain accepts all that comes from a bridge and goes there: frames
// between its ports, which pass the chain with br_netfilter.
func (b *Blocker) LetsWithin(bridge string) bool {
	is := matches(bridge)
	return slices.ContainsFunc(b.in, is) || slices.ContainsFunc(b.out, is) ||
		slices.ContainsFunc(b.pairs, func(p [2]string) bool { return is(p[0]) && is(p[1]) })
}

// matches returns what reports whether a name in a rule is that of a link.
func matches(link string) func(string) bool {
	return func(name string) bool {
		prefix, all := strings.CutSuffix(name, "*")
		return name == link || all && strings.HasPrefix(link, prefix)
	}
}

// maxJumps is how far rules are followed to other chains.
const maxJumps = 4

// readAccepts looks for the links that the rules of a chain accept, and those of the chains that
// it always jumps to. Links in sets, and rules with more conditions, are left out.
func (b *Blocker) readAccepts(rules []listed, chain string, jumps int) {
	for i := range rules {
		if rules[i].chain == chain {
			b.readAccept(rules, &rules[i], jumps)
		}
	}
}

// readAccept is readAccepts for one rule.
func (b *Blocker) readAccept(rules []listed, r *listed, jumps int) {
	var key uint64 // of the last meta expression; 0: none, or its value was compared
	var in, out string
	for _, e := range expressions(r.exprs) {
		switch {
		case e.name == "counter" || e.name == "log":
		case e.name == "meta" && key == 0:
			key = num(e.data, unix.NFTA_META_KEY)
		case e.name == "cmp" && num(e.data, unix.NFTA_CMP_OP) == unix.NFT_CMP_EQ:
			name := nlconn.Attribute(e.data, unix.NFTA_CMP_DATA, unix.NFTA_DATA_VALUE)
			link := unix.ByteSliceToString(name)
			if len(link) == len(name) { // without the NUL it is the beginning of a name
				link += "*"
			}
			switch {
			case key == unix.NFT_META_IIFNAME && in == "":
				in = link
			case key == unix.NFT_META_OIFNAME && out == "":
				out = link
			default:
				return
			}
			key = 0
		case e.name != "immediate" || key != 0:
			return
		case in == "" && out == "" && e.jump() != "" && jumps > 0:
			b.readAccepts(rules, e.jump(), jumps-1)
		case e.verdict() != expr.VerdictAccept:
		case in != "" && out != "":
			b.pairs = append(b.pairs, [2]string{in, out})
		case in != "":
			b.in = append(b.in, in)
		case out != "":
			b.out = append(b.out, out)
		}
	}
}

// verdict is that of an immediate expression.
func (e *expression) verdict() expr.VerdictKind {
	return expr.VerdictKind(int32(num(e.data, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT, unix.NFTA_VERDICT_CODE)))
}

// familyNames are what packets are forwarded by.
var familyNames = [...]struct {
	family byte
	name   string
}{{inet, "inet"}, {v4, "ip"}, {v6, "ip6"}}

// Blockers lists them. No lock is taken.
func (t *Table) Blockers() (all []Blocker, err error) {
	s, err := dial(t.ns)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	for _, f := range familyNames {
		var found []Blocker
		drops := map[string]bool{}
		err := s.dump(unix.NFT_MSG_GETCHAIN, f.family, func(_ byte, data []byte) {
			hook := nlconn.Attribute(data, unix.NFTA_CHAIN_HOOK)
			b := Blocker{Family: f.name, Table: text(data, unix.NFTA_CHAIN_TABLE), Chain: text(data, unix.NFTA_CHAIN_NAME)}
			if hook == nil || num(hook, unix.NFTA_HOOK_HOOKNUM) != unix.NF_INET_FORWARD || text(data, unix.NFTA_CHAIN_TYPE) != "filter" || b.Table == TableName {
				return
			}
			found = append(found, b)
			drops[b.Table+"/"+b.Chain] = num(data, unix.NFTA_CHAIN_POLICY) == uint64(expr.VerdictDrop)
		})
		if err != nil {
			return nil, err
		}
		for _, b := range found {
			rules, err := s.rulesOf(f.family, b.Table, "")
			if err != nil {
				return nil, err
			}
			blocks, last := drops[b.Table+"/"+b.Chain], false
			for _, r := range rules {
				if r.chain == b.Chain {
					b.Asks = b.Asks || r.jump() == filterChain
					last = r.stopsAll()
				}
			}
			if blocks || last {
				b.readAccepts(rules, b.Chain, maxJumps)
				all = append(all, b)
			}
		}
	}
	return all, nil
}

// stopsAll reports whether a rule drops or rejects every packet.
func (r *listed) stopsAll() bool {
	stops := false
	for _, e := range expressions(r.exprs) {
		switch e.name {
		case "counter", "log":
		case "reject":
			stops = true
		case "immediate":
			stops = e.verdict() == expr.VerdictDrop
		default:
			return false
		}
	}
	return stops
}
