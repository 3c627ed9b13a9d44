package nft

import (
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
	defer s.close()
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
			rules, err := s.rulesOf(f.family, b.Table, b.Chain)
			if err != nil {
				return nil, err
			}
			blocks := drops[b.Table+"/"+b.Chain]
			for i, r := range rules {
				b.Asks = b.Asks || r.jump() == filterChain
				blocks = blocks || i == len(rules)-1 && r.stopsAll()
			}
			if blocks {
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
			stops = num(e.data, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT, unix.NFTA_VERDICT_CODE) == uint64(expr.VerdictDrop)
		default:
			return false
		}
	}
	return stops
}
