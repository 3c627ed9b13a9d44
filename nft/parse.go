package nft

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// understood ends the errors about conditions.
const understood = `understood are, of iptables: [!] -s -d -i -o -p --sport --dport --sports --dports --mark --comment and -m of these; ` +
	`of nft: ip|ip6 saddr|daddr, iifname, oifname, tcp|udp|sctp|th sport|dport, meta mark|l4proto|iifname|oifname, ct mark, each with an optional != and a value or { a, b }`

// ParseConditions reads the list of tokens that portmap's configuration has
// as conditionsV4 or, with ip6, conditionsV6: the syntax of iptables when the
// first token begins with - or !, else that of nft. All must hold. No tokens
// are no conditions. The error names the token it did not understand.
func ParseConditions(tokens []string, ip6 bool) ([]Match, error) {
	p := parser{family: v4}
	if ip6 {
		p.family = v6
	}
	if len(tokens) == 0 {
		return nil, nil
	}
	var err error
	if strings.HasPrefix(tokens[0], "-") || strings.HasPrefix(tokens[0], "!") {
		p.tokens = tokens
		err = p.iptables()
	} else {
		p.tokens = nftTokens(tokens)
		err = p.nft()
	}
	if err != nil {
		return nil, fmt.Errorf("conditions: %w; %s", err, understood)
	}
	if _, err := condGroup("", p.family, false, p.all); err != nil {
		return nil, err
	}
	return p.all, nil
}

// A parser walks over the tokens of one list and collects what they mean. It
// keeps only what is left to read.
type parser struct {
	tokens []string
	family byte
	all    []Match
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

// iptables reads [!] option value …
func (p *parser) iptables() error {
	for len(p.tokens) > 0 {
		option, _ := p.next("")
		not := option == "!"
		if not {
			var err error
			if option, err = p.next("!"); err != nil {
				return err
			}
		}
		var value string
		if long, v, ok := strings.Cut(option, "="); ok && strings.HasPrefix(long, "--") {
			option, value = long, v
		} else {
			var err error
			if value, err = p.next(option); err != nil {
				return err
			}
		}
		if err := p.option(option, value, not); err != nil {
			return err
		}
	}
	return nil
}

// option adds the condition that an option of iptables stands for; -m and comments
// stand for none. An option that is not understood must not be passed over: the
// port would be open to more than was asked for.
func (p *parser) option(option, value string, not bool) error {
	switch option {
	case "-m", "--match":
		switch value {
		case "tcp", "udp", "sctp", "multiport", "mark", "comment":
			return nil
		}
		return fmt.Errorf("match %q is not understood", value)
	case "--comment":
		return nil
	case "-s", "--source", "--src":
		return p.add(fieldSource, not, strings.Split(value, ","))
	case "-d", "--destination", "--dst":
		return p.add(fieldDestination, not, strings.Split(value, ","))
	case "-i", "--in-interface":
		return p.add(fieldInput, not, []string{plusToStar(value)})
	case "-o", "--out-interface":
		return p.add(fieldOutput, not, []string{plusToStar(value)})
	case "-p", "--protocol", "--proto":
		if value == "all" {
			return nil
		}
		return p.add(fieldProto, not, []string{value})
	case "--sport", "--source-port", "--sports", "--source-ports":
		return p.add(fieldSourcePort, not, portLists(value))
	case "--dport", "--destination-port", "--dports", "--destination-ports":
		return p.add(fieldDestinationPort, not, portLists(value))
	case "--mark":
		return p.add(fieldMark, not, []string{value})
	}
	return fmt.Errorf("%q is not understood", option)
}

// portLists splits a list of iptables' ports, whose ranges have a colon with
// either side optional.
func portLists(value string) []string {
	list := strings.Split(value, ",")
	for i, v := range list {
		lo, hi, ok := strings.Cut(v, ":")
		if !ok {
			continue
		}
		if lo == "" {
			lo = "0"
		}
		if hi == "" {
			hi = "65535"
		}
		list[i] = lo + "-" + hi
	}
	return list
}

// plusToStar turns iptables' sign for any ending into ours, which is nft's.
func plusToStar(name string) string {
	if n := len(name) - 1; n > 0 && name[n] == '+' {
		return name[:n] + "*"
	}
	return name
}

// nftTokens splits at blanks and around the signs that stand alone: configurations
// have "{ 80, 443 }" as one token, or as any number of them.
func nftTokens(tokens []string) []string {
	s := strings.Join(tokens, " ")
	for _, sign := range []string{"{", "}", ",", "!=", "==", "&"} {
		s = strings.ReplaceAll(s, sign, " "+sign+" ")
	}
	return strings.Fields(s)
}

// nft reads subject [!=] values …
func (p *parser) nft() error {
	for len(p.tokens) > 0 {
		head, _ := p.next("")
		key := head
		switch head {
		case "ip", "ip6", "tcp", "udp", "sctp", "th", "meta", "ct":
			second, err := p.next(head)
			if err != nil {
				return err
			}
			key += " " + second
		}
		field, err := p.subject(head, key)
		if err != nil {
			return err
		}
		if err := p.values(field, key); err != nil {
			return err
		}
	}
	return nil
}

// subject tells what a nft expression looks at; head is the first word of key. iif
// and oif, which nft turns into indexes, are compared by name.
func (p *parser) subject(head, key string) (field, error) {
	if want := map[byte]string{v4: "ip", v6: "ip6"}[p.family]; (head == "ip" || head == "ip6") && head != want {
		return 0, fmt.Errorf("%q is of the other address family", key)
	}
	switch key {
	case "ip saddr", "ip6 saddr":
		return fieldSource, nil
	case "ip daddr", "ip6 daddr":
		return fieldDestination, nil
	case "iifname", "iif", "meta iifname", "meta iif":
		return fieldInput, nil
	case "oifname", "oif", "meta oifname", "meta oif":
		return fieldOutput, nil
	case "meta l4proto", "ip protocol":
		return fieldProto, nil
	case "mark", "meta mark":
		return fieldMark, nil
	case "ct mark":
		return fieldConnMark, nil
	case "tcp sport", "udp sport", "sctp sport", "th sport":
		return fieldSourcePort, p.transport(head)
	case "tcp dport", "udp dport", "sctp dport", "th dport":
		return fieldDestinationPort, p.transport(head)
	}
	return 0, fmt.Errorf("%q is not understood", key)
}

// transport adds the protocol that nft's "tcp dport" implies.
func (p *parser) transport(name string) error {
	if name == "th" {
		return nil
	}
	return p.add(fieldProto, false, []string{name})
}

// values reads [!=] value or [!=] { value, … }, and for marks [& mask ==] value.
func (p *parser) values(f field, key string) error {
	v, err := p.next(key)
	if err != nil {
		return err
	}
	mask := ""
	if v == "&" || v == "and" {
		if mask, err = p.next(v); err == nil {
			v, err = p.next(mask)
		}
		if err != nil {
			return err
		}
	}
	not := v == "!="
	if not || v == "==" {
		if v, err = p.next(v); err != nil {
			return err
		}
	}
	list := []string{v}
	if v == "{" {
		if list, err = p.list(); err != nil {
			return err
		}
	}
	if mask != "" {
		if f != fieldMark && f != fieldConnMark || len(list) != 1 {
			return fmt.Errorf("a mask for %q is not understood", key)
		}
		list[0] += "/" + mask
	}
	return p.add(f, not, list)
}

// list reads value, … } and drops the brace. An empty list is an error, as for nft.
func (p *parser) list() (list []string, err error) {
	for {
		v, err := p.next("{")
		if err != nil {
			return nil, err
		}
		switch v {
		case "}":
			if len(list) == 0 {
				return nil, fmt.Errorf("nothing stands between { and }")
			}
			return list, nil
		case ",":
		default:
			list = append(list, v)
		}
	}
}

// add appends a condition on one field.
func (p *parser) add(f field, not bool, values []string) error {
	m := Match{field: f, not: not}
	for _, v := range values {
		if err := p.value(&m, v); err != nil {
			return err
		}
	}
	p.all = append(p.all, m)
	return nil
}

// value adds one value to a condition, in the form its field asks for.
func (p *parser) value(m *Match, v string) error {
	var err error
	switch m.field {
	case fieldSource, fieldDestination:
		var a netip.Prefix
		a, err = p.prefix(v)
		m.addrs = append(m.addrs, a)
	case fieldInput, fieldOutput:
		v = strings.Trim(v, `"`)
		if v == "" || len(v) >= ifnameLen || v == "*" || strings.ContainsAny(v, "/ \t\n{},!") {
			return fmt.Errorf("%q is no interface", v)
		}
		m.names = append(m.names, v)
	case fieldProto:
		var n uint8
		n, err = protocol(v)
		m.protos = append(m.protos, n)
	case fieldSourcePort, fieldDestinationPort:
		var r portRange
		r, err = ports(v)
		m.ports = append(m.ports, r)
	default:
		if m.mask != 0 {
			return fmt.Errorf("%q: a list of marks is not understood", v)
		}
		m.mark, m.mask, err = markAndMask(v)
	}
	return err
}

// prefix reads an address or a prefix of the list's family. Names are not
// looked up: a rule that depends on an answer of the moment is none.
func (p *parser) prefix(v string) (netip.Prefix, error) {
	a, err := netip.ParsePrefix(v)
	if err != nil {
		addr, aerr := netip.ParseAddr(v)
		if aerr != nil || addr.Zone() != "" {
			return a, fmt.Errorf("%q is no address", v)
		}
		a = netip.PrefixFrom(addr, addr.BitLen())
	}
	if familyOf(a.Addr()) != p.family {
		return a, fmt.Errorf("%q is of the other address family", v)
	}
	return a.Masked(), nil
}

// protocol reads one of the protocols that have ports, or any number but 0, which
// is "all" for iptables and the header of hop-by-hop options for IPv6.
func protocol(v string) (uint8, error) {
	switch strings.ToLower(v) {
	case "tcp":
		return unix.IPPROTO_TCP, nil
	case "udp":
		return unix.IPPROTO_UDP, nil
	case "sctp":
		return unix.IPPROTO_SCTP, nil
	}
	n, err := strconv.ParseUint(v, 10, 8)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is no protocol", v)
	}
	return uint8(n), nil
}

// ports reads one port or a range with a dash, 0 to 65535, the smaller first.
func ports(v string) (portRange, error) {
	from, to, ok := strings.Cut(v, "-")
	if !ok {
		to = from
	}
	lo, err := strconv.ParseUint(from, 10, 16)
	hi, err2 := strconv.ParseUint(to, 10, 16)
	if err != nil || err2 != nil || lo > hi {
		return portRange{}, fmt.Errorf("%q is no port or range of ports", v)
	}
	return portRange{uint16(lo), uint16(hi)}, nil
}

// markAndMask reads value[/mask], decimal, or hexadecimal after 0x; a mask of 0 would
// match everything and is refused.
func markAndMask(v string) (mark, mask uint32, err error) {
	value, rest, ok := strings.Cut(v, "/")
	n, err := strconv.ParseUint(value, 0, 32)
	bits := uint64(^uint32(0))
	if ok && err == nil {
		bits, err = strconv.ParseUint(rest, 0, 32)
	}
	if err != nil || bits == 0 {
		return 0, 0, fmt.Errorf("%q is no mark", v)
	}
	return uint32(n), uint32(bits), nil
}
