package nft

import (
	"encoding/binary"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/nlconn"

	"github.com/cnibox/cnibox/nft/internal/wire"
)

// An installedRule is a rule as the kernel has it: NFTA_RULE_*. A rule has no name; it is deleted
// by its handle, a number that is never reused within the table.
type installedRule struct {
	family  byte
	table   string
	chain   string
	handle  uint64
	comment string
	exprs   []byte // list of NFTA_LIST_ELEM
}

// rulesOf lists rules in order: those of a chain, or of a whole table if chain is empty. A missing
// table or chain has no rules.
func (s *sock) rulesOf(family byte, table, chain string) (rules []installedRule, err error) {
	err = s.request(nfTables|unix.NFT_MSG_GETRULE, netlink.Dump, family, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_RULE_TABLE, table)
		if chain != "" {
			ae.String(unix.NFTA_RULE_CHAIN, chain)
		}
	}, func(_ byte, data []byte) {
		r := readRule(family, data)
		// Older kernels ignore the filter.
		if r.table == table && (chain == "" || r.chain == chain) {
			rules = append(rules, r)
		}
	})
	return rules, ignoreNotExist(err)
}

// getRules gets rules of a chain by their handles, in one request. It omits rules that do not
// exist.
func (s *sock) getRules(c chainID, handles []uint64) (rules []installedRule, err error) {
	if len(handles) == 0 {
		return nil, nil
	}
	var gets []netlink.Message
	for _, h := range handles {
		get, err := wire.Message(nfTables|unix.NFT_MSG_GETRULE, 0, c.family, func(ae *netlink.AttributeEncoder) {
			ae.String(unix.NFTA_RULE_TABLE, c.table)
			ae.String(unix.NFTA_RULE_CHAIN, c.name)
			ae.Uint64(unix.NFTA_RULE_HANDLE, h)
		})
		if err != nil {
			return nil, err
		}
		gets = append(gets, get)
	}
	answers, err := s.nl.Batch(gets, 0)
	if err != nil {
		return nil, ignoreNotExist(err)
	}
	for _, a := range answers {
		if err := ignoreNotExist(a.Err); err != nil {
			return nil, err
		}
		for _, m := range a.Messages {
			if len(m.Data) >= headerLen {
				rules = append(rules, readRule(c.family, m.Data[headerLen:]))
			}
		}
	}
	return rules, nil
}

func readRule(family byte, data []byte) installedRule {
	r := installedRule{family: family}
	for t, v := range nlconn.Attributes(data) {
		switch t {
		case unix.NFTA_RULE_TABLE:
			r.table = unix.ByteSliceToString(v)
		case unix.NFTA_RULE_CHAIN:
			r.chain = unix.ByteSliceToString(v)
		case unix.NFTA_RULE_HANDLE:
			r.handle = binary.BigEndian.Uint64(v)
		case unix.NFTA_RULE_USERDATA:
			r.comment = Comment(v)
		case unix.NFTA_RULE_EXPRESSIONS:
			r.exprs = v
		}
	}
	return r
}

// Comment returns the comment in a rule's user data.
func Comment(userData []byte) string { return unix.ByteSliceToString(readComment(userData)) }

// An expression is one expression of a listed rule.
type expression struct {
	name string
	data []byte // attributes
}

// expressions decodes the list of a rule's expressions.
func expressions(list []byte) (all []expression) {
	for t, v := range nlconn.Attributes(list) {
		if t == unix.NFTA_LIST_ELEM {
			all = append(all, expression{text(v, unix.NFTA_EXPR_NAME), nlconn.Attribute(v, unix.NFTA_EXPR_DATA)})
		}
	}
	return all
}

// jump returns the chain to which a rule jumps or goes; "" if it does not.
func (r *installedRule) jump() string {
	for _, e := range expressions(r.exprs) {
		if e.name == "immediate" {
			return e.jump()
		}
	}
	return ""
}

// jump returns the target chain of an immediate expression; "" if it has none.
func (e *expression) jump() string {
	return text(e.data, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT, unix.NFTA_VERDICT_CHAIN)
}

// A chainID names a chain of any table; without a chain name it names the table.
type chainID struct {
	family      byte
	table, name string
}

// getChain gets a chain; use is the number of its rules plus the number of jumps from rules and
// elements to it.
func (s *sock) getChain(c chainID) (ok bool, use int, err error) {
	l, err := s.chain(c)
	return l.data != nil, l.use(), err
}

// chain is getChain with all attributes; without data the chain does not exist.
func (s *sock) chain(c chainID) (l installedChain, err error) {
	err = s.request(nfTables|unix.NFT_MSG_GETCHAIN, 0, c.family, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_CHAIN_TABLE, c.table)
		ae.String(unix.NFTA_CHAIN_NAME, c.name)
	}, func(_ byte, data []byte) { l = installedChain{c.name, data} })
	return l, ignoreNotExist(err)
}

// chainsIn lists the chains of a table; the kernel can only list those of a whole family.
func (s *sock) chainsIn(family byte, table string) (chains []installedChain, err error) {
	err = s.dump(unix.NFT_MSG_GETCHAIN, family, func(_ byte, data []byte) {
		if text(data, unix.NFTA_CHAIN_TABLE) == table {
			chains = append(chains, installedChain{text(data, unix.NFTA_CHAIN_NAME), data})
		}
	})
	return chains, err
}

// setsIn lists the names of a table's sets.
func (s *sock) setsIn(family byte, table string) (names []string, err error) {
	err = s.dump(unix.NFT_MSG_GETSET, family, func(_ byte, data []byte) {
		if text(data, unix.NFTA_SET_TABLE) == table {
			names = append(names, text(data, unix.NFTA_SET_NAME))
		}
	})
	return names, err
}

// An installedChain is a chain as the kernel has it.
type installedChain struct {
	name string
	data []byte // attributes
}

// use is the number of the chain's rules plus the number of jumps from rules and elements to it.
func (c installedChain) use() int { return int(num(c.data, unix.NFTA_CHAIN_USE)) }

// tables lists all tables of the namespace.
func (s *sock) tables() (tables []chainID, err error) {
	err = s.dump(unix.NFT_MSG_GETTABLE, unix.NFPROTO_UNSPEC, func(family byte, data []byte) {
		tables = append(tables, chainID{family: family, table: text(data, unix.NFTA_TABLE_NAME)})
	})
	return tables, err
}

// dump lists all objects of one type.
func (s *sock) dump(msg netlink.HeaderType, family byte, fn func(family byte, data []byte)) error {
	return ignoreNotExist(s.request(nfTables|msg, netlink.Dump, family, nil, fn))
}

func text(b []byte, path ...uint16) string { return nlconn.Text(b, path...) }

func num(b []byte, path ...uint16) uint64 { return nlconn.Number(b, path...) }
