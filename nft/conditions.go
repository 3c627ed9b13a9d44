package nft

import (
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables/expr"

	"github.com/cnibox/cnibox/spec"
)

// A Match is one condition of a port map; only [ParseConditions] creates them. One of the values of
// the field must match; with not, none of them may. Marks use mark and mask, other fields the list
// of their type.
type Match struct {
	field  field
	not    bool
	addrs  []netip.Prefix
	names  []string // interfaces; a trailing * matches anything
	marked bool     // mark and mask were read
	mark   uint32
	mask   uint32
}

// A field is the part of a packet that a condition matches.
type field int

const (
	fieldNone field = iota
	fieldSource
	fieldDestination
	fieldInput
	fieldOutput
	fieldMark
	fieldConnMark
)

// fieldOf returns the field of an iptables option or an nft expression. iif and oif, which nft
// turns into indexes, are compared by name.
func fieldOf(words string) field {
	switch words {
	case "-s", "--source", "--src", "ip saddr", "ip6 saddr":
		return fieldSource
	case "-d", "--destination", "--dst", "ip daddr", "ip6 daddr":
		return fieldDestination
	case "-i", "--in-interface", "iif", "iifname", "meta iif", "meta iifname":
		return fieldInput
	case "-o", "--out-interface", "oif", "oifname", "meta oif", "meta oifname":
		return fieldOutput
	case "--mark", "mark", "meta mark":
		return fieldMark
	case "ct mark":
		return fieldConnMark
	}
	return fieldNone
}

// understood ends the errors about conditions.
const understood = `understood are, of iptables: [!] -s -d -i -o, -m mark [!] --mark; ` +
	`of nft: ip|ip6 saddr|daddr, iifname, oifname, meta mark, ct mark, each with an optional != and a value or { a, b }`

// maxWords is the largest number of words in conditions. Each rule for the attachment's ports
// repeats them, and the kernel rejects a rule with 128 expressions, and a message of many
// megabytes.
const maxWords = 1000

// ParseConditions parses the tokens of conditionsV4, or with ip6 those of conditionsV6, in
// portmap's configuration, in the syntax of iptables or nft. All conditions must hold; no tokens
// mean no conditions. The error names the token that was not understood. No token is ignored, since
// the port would be open to more packets than configured.
func ParseConditions(tokens []string, ip6 bool) ([]Match, error) {
	p := parser{family: v4}
	if ip6 {
		p.family = v6
	}
	// Configurations have "{ a, b }" as one token, or as any number of them.
	s := strings.Join(tokens, " ")
	for _, sign := range []string{"{", "}", ",", "!=", "==", "&"} {
		s = strings.ReplaceAll(s, sign, " "+sign+" ")
	}
	if p.tokens = strings.Fields(s); len(p.tokens) > maxWords {
		return nil, fmt.Errorf("conditions: %d words, and at most %d are read: put addresses into { a, b } with a shorter prefix length, or into a set of a table of your own", len(p.tokens), maxWords)
	}
	var all []Match
	for len(p.tokens) > 0 {
		if p.take("-m mark") || p.take("--match mark") {
			continue
		}
		m, err := p.condition()
		if err != nil {
			return nil, fmt.Errorf("conditions: %w; %s", err, understood)
		}
		all = append(all, m)
	}
	if _, err := condGroup("", p.family, false, all); err != nil {
		return nil, err
	}
	return all, nil
}

// A parser holds the remaining tokens.
type parser struct {
	tokens []string
	family byte
}

// next returns the token that must follow what.
func (p *parser) next(what string) (string, error) {
	if len(p.tokens) == 0 {
		return "", fmt.Errorf("nothing follows %q", what)
	}
	t := p.tokens[0]
	p.tokens = p.tokens[1:]
	return t, nil
}

// take removes the words if they come next.
func (p *parser) take(words string) bool {
	list := strings.Fields(words)
	if len(p.tokens) < len(list) || !slices.Equal(p.tokens[:len(list)], list) {
		return false
	}
	p.tokens = p.tokens[len(list):]
	return true
}

// condition parses [!] option value, or expression [!=] value; several values are written a,b or {
// a, b }.
func (p *parser) condition() (m Match, err error) {
	m.not = p.take("!")
	key, err := p.next("!")
	if err != nil {
		return m, err
	}
	switch key {
	case "ip", "ip6", "meta", "ct":
		word, err := p.next(key)
		if err != nil {
			return m, err
		}
		if key == "ip" && p.family == v6 || key == "ip6" && p.family == v4 {
			return m, fmt.Errorf("%q is of the other address family", key+" "+word)
		}
		key += " " + word
	}
	if m.field = fieldOf(key); m.field == fieldNone {
		return m, fmt.Errorf("%q is not understood", key)
	}
	mask := ""
	if (m.field == fieldMark || m.field == fieldConnMark) && (p.take("&") || p.take("and")) {
		if mask, err = p.next("&"); err != nil {
			return m, err
		}
		mask = "/" + mask
	}
	m.not = p.take("!=") || m.not
	p.take("==")
	open := p.take("{")
	for more := true; more; more = p.take(",") {
		v, err := p.next(key)
		if err == nil {
			err = p.value(&m, v+mask)
		}
		if err != nil {
			return m, err
		}
	}
	if open && !p.take("}") {
		return m, fmt.Errorf("the list of %q has no end", key)
	}
	return m, nil
}

// value adds one value to a condition, parsed as its field requires.
func (p *parser) value(m *Match, v string) (err error) {
	switch m.field {
	case fieldSource, fieldDestination:
		var a netip.Prefix
		a, err = p.prefix(v)
		m.addrs = append(m.addrs, a)
	case fieldInput, fieldOutput:
		name := strings.Trim(v, `"`)
		if before, ok := strings.CutSuffix(name, "+"); ok && before != "" {
			name = before + "*" // nft's wildcard
		}
		if name == "" || len(name) >= ifnameLen || name == "*" || strings.ContainsAny(name, "/{}!&=") {
			return fmt.Errorf("%q is not an interface", v)
		}
		m.names = append(m.names, name)
	default:
		if m.marked {
			return fmt.Errorf("%q: a list of marks is not understood", v)
		}
		m.marked = true
		m.mark, m.mask, err = markAndMask(v)
	}
	return err
}

// prefix parses an address or a prefix of the list's family. It does not look up names: a rule must
// not depend on the answer of a name server at that time.
func (p *parser) prefix(v string) (netip.Prefix, error) {
	a, err := netip.ParsePrefix(v)
	if err != nil {
		addr, aerr := netip.ParseAddr(v)
		if aerr != nil || addr.Zone() != "" {
			return a, fmt.Errorf("%q is not an address", v)
		}
		a = netip.PrefixFrom(addr, addr.BitLen())
	}
	if familyOf(a.Addr()) != p.family {
		return a, fmt.Errorf("%q is of the other address family", v)
	}
	return a.Masked(), nil
}

// markAndMask parses value[/mask], decimal, or hexadecimal after 0x. It rejects a mask of 0, which
// would match everything.
func markAndMask(v string) (mark, mask uint32, err error) {
	value, rest, ok := strings.Cut(v, "/")
	n, err := strconv.ParseUint(value, 0, 32)
	bits := uint64(^uint32(0))
	if ok && err == nil {
		bits, err = strconv.ParseUint(rest, 0, 32)
	}
	if err != nil || bits == 0 {
		return 0, 0, fmt.Errorf("%q is not a mark", v)
	}
	return uint32(n), uint32(bits), nil
}

// mostRules is the largest number of combinations of the lists in one configuration: each
// combination is a rule, and the first packet of each connection to the port is compared with one
// after the other.
const mostRules = 256

// condGroup returns the chain with the conditions of a network's host ports. The chain's name
// follows from its rules, so networks and mappings with other conditions have other chains, and a
// chain is deleted with its last mapping. The error is about lists with more than mostRules
// combinations.
func condGroup(network string, family byte, host bool, conds []Match) (chain, error) {
	all := []rule{rule{}.family(family)}
	for i := range conds {
		alternatives := conds[i].rules(family)
		if len(all)*len(alternatives) > mostRules {
			return chain{}, fmt.Errorf("conditions: their lists make more than %d combinations", mostRules)
		}
		var longer []rule
		for _, r := range all {
			for _, alt := range alternatives {
				longer = append(longer, slices.Concat(r, alt))
			}
		}
		all = longer
	}
	var bytes []byte
	for i, r := range all {
		all[i] = append(r, &expr.Verdict{Kind: expr.VerdictGoto, Chain: condChain(family, host)})
		bytes = append(bytes, all[i].list()...)
	}
	sum := sha512.Sum512(bytes)
	name := "cond-" + spec.NetworkKey(network) + hex.EncodeToString(sum[:8])
	return chain{name: name, needs: ctNeeds, rules: all}, nil
}

// rules returns the expressions of a condition. All expressions of one rule must match, so "one of
// these" takes a rule for each value, while "none of these" is a single rule with all values.
func (m *Match) rules(family byte) (each []rule) {
	op := expr.CmpOpEq
	if m.not {
		op = expr.CmpOpNeq
	}
	for _, p := range m.addrs {
		each = append(each, rule{}.addr(family, m.field == fieldDestination).inside(op, p))
	}
	for _, name := range m.names {
		key := expr.MetaKeyIIFNAME
		if m.field == fieldOutput {
			key = expr.MetaKeyOIFNAME
		}
		each = append(each, rule{}.meta(key, 0).ifname(op, name))
	}
	if m.marked {
		r := rule{}.meta(expr.MetaKeyMARK, 0)
		if m.field == fieldConnMark {
			r = rule{}.ct(expr.CtKeyMARK)
		}
		if m.mask != ^uint32(0) {
			r = r.mask(native(m.mask))
		}
		each = append(each, r.cmp(op, native(m.mark))) // loaded in host byte order
	}
	if m.not {
		return []rule{slices.Concat(each...)}
	}
	return each
}
