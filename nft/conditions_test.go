package nft

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

func TestParseConditions(t *testing.T) {
	tests := map[string]struct {
		tokens string // separated by |
		ip6    bool
		want   string // in the syntax of nft
		err    string // part of the error; "": none
	}{
		"none":            {},
		"source":          {tokens: "-s|10.0.0.0/8", want: "ip saddr 10.0.0.0/8"},
		"not destination": {tokens: "!|-d|192.0.2.7", want: "ip daddr != 192.0.2.7"},
		"list":            {tokens: "--source|10.0.0.1,10.0.1.0/24", want: "ip saddr 10.0.0.1, 10.0.1.0/24"},
		"not list":        {tokens: "!|-s|10.0.0.1,10.0.1.0/24", want: "ip saddr != 10.0.0.1, 10.0.1.0/24"},
		"interfaces":      {tokens: "!|-i|eth+|-o|br0", want: `iifname != "eth*" oifname "br0"`},
		"mark":            {tokens: "-m|mark|!|--mark|0x1/0xff", want: "meta mark != 0x1/0xff"},
		"nft in one":      {tokens: "ip daddr {10.0.0.1,10.0.0.2} iifname != {eth0, eth1}", want: `ip daddr 10.0.0.1, 10.0.0.2 iifname != "eth0", "eth1"`},
		"nft names":       {tokens: `iifname "eth0" oifname != br*`, want: `iifname "eth0" oifname != "br*"`},
		"nft marks":       {tokens: "meta mark & 0xff == 1 ct mark 0x10", want: "meta mark 0x1/0xff ct mark 0x10/0xffffffff"},
		"host bits":       {tokens: "-s|10.1.2.3/8", want: "ip saddr 10.0.0.0/8"},
		"everything":      {tokens: "-s|0.0.0.0/0", want: "ip saddr 0.0.0.0/0"},
		"interface":       {tokens: "-i|eth0", want: `iifname "eth0"`},
		"IPv6":            {tokens: "-s|fd00::/64", ip6: true, want: "ip6 saddr fd00::/64"},
		"nft":             {tokens: "ip|saddr|!=|10.0.0.0/8", want: "ip saddr != 10.0.0.0/8"},
		"nft IPv6":        {tokens: "ip6 saddr fd00::1", ip6: true, want: "ip6 saddr fd00::1"},

		"unknown option":    {tokens: "-j|ACCEPT", err: `"-j" is not understood; understood are`},
		"equals sign":       {tokens: "--source=10.0.0.1", err: `"--source=10.0.0.1" is not understood`},
		"protocol":          {tokens: "-p|tcp", err: `"-p" is not understood`},
		"ports":             {tokens: "--dport|80", err: `"--dport" is not understood`},
		"unknown match":     {tokens: "-m|owner", err: `"-m" is not understood`},
		"comment":           {tokens: "-m|comment|--comment|x", err: `"-m" is not understood`},
		"ports, nft":        {tokens: "tcp dport 80", err: `"tcp" is not understood`},
		"protocol, nft":     {tokens: "meta l4proto tcp", err: `"meta l4proto" is not understood`},
		"mask of names":     {tokens: "iifname & 0xff == 1", err: `"&" is not an interface`},
		"marks":             {tokens: "meta mark { 1, 2 }", err: "list of marks"},
		"open brace":        {tokens: "ip saddr { 10.0.0.1", err: "has no end"},
		"empty braces":      {tokens: "ip saddr { }", err: `"}" is not an address`},
		"no value":          {tokens: "-s", err: `nothing follows "-s"`},
		"only not":          {tokens: "!", err: `nothing follows "!"`},
		"bad address":       {tokens: "-s|10.0.0.300", err: `"10.0.0.300" is not an address`},
		"name":              {tokens: "-s|example.com", err: `"example.com" is not an address`},
		"other family":      {tokens: "-s|fd00::1", err: "other address family"},
		"other family, nft": {tokens: "ip saddr 10.0.0.1", ip6: true, err: `"ip saddr" is of the other`},
		"long interface":    {tokens: "-i|abcdefghijklmnopq", err: "is not an interface"},
		"mask 0":            {tokens: "--mark|1/0", err: "is not a mark"},
		"unknown nft":       {tokens: "fib saddr type local", err: `"fib" is not understood`},
		"verdict":           {tokens: "ip saddr 10.0.0.1 drop", err: `"drop" is not understood`},
		"too many":          {tokens: "-s|" + strings.Repeat("10.0.0.1,", 299) + "10.0.0.1", err: "combinations"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var tokens []string
			if tt.tokens != "" {
				tokens = strings.Split(tt.tokens, "|")
			}
			conds, err := ParseConditions(tokens, tt.ip6)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("got %v, want %q in the error", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := conditionText(conds, tt.ip6); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// conditionText formats conditions in the syntax of nft, with all values of a list.
func conditionText(conds []Match, ip6 bool) string {
	ip := "ip"
	if ip6 {
		ip = "ip6"
	}
	words := map[field]string{
		fieldSource: ip + " saddr", fieldDestination: ip + " daddr", fieldInput: "iifname", fieldOutput: "oifname",
		fieldMark: "meta mark", fieldConnMark: "ct mark",
	}
	var all []string
	for _, m := range conds {
		var values []string
		for _, p := range m.addrs {
			text := p.String()
			if p.IsSingleIP() {
				text = p.Addr().String()
			}
			values = append(values, text)
		}
		for _, name := range m.names {
			values = append(values, strconv.Quote(name))
		}
		if m.marked {
			values = append(values, fmt.Sprintf("%#x/%#x", m.mark, m.mask))
		}
		text := words[m.field]
		if m.not {
			text += " !="
		}
		all = append(all, text+" "+strings.Join(values, ", "))
	}
	return strings.Join(all, " ")
}

// Chains differ by conditions, network and family.
func TestConditionChainNames(t *testing.T) {
	seen := map[string]string{}
	for _, what := range []string{"net1 -s 10.0.0.1", "net1 -s 10.0.0.2", "net2 -s 10.0.0.1", "net1 -d 10.0.0.1", "net1 ! -s 10.0.0.1"} {
		words := strings.Fields(what)
		conds, err := ParseConditions(words[1:], false)
		if err != nil {
			t.Fatal(err)
		}
		for _, host := range []bool{false, true} {
			c, err := condGroup(words[0], v4, host, conds)
			if err != nil {
				t.Fatal(err)
			}
			if had := seen[c.name]; had != "" {
				t.Errorf("%q and %q share %s", what, had, c.name)
			}
			seen[c.name] = what
		}
	}
}

func FuzzParseConditions(f *testing.F) {
	for _, s := range []string{"-s|10.0.0.0/8|!|-i|eth+", "ip saddr { 10.0.0.1, 10.0.0.2 } iifname eth0", "meta mark & 0xff == 1", "!"} {
		f.Add(s, false)
		f.Add(s, true)
	}
	f.Fuzz(func(t *testing.T, s string, ip6 bool) {
		conds, err := ParseConditions(strings.Split(s, "|"), ip6)
		if err == nil {
			conditionText(conds, ip6)
			family := v4
			if ip6 {
				family = v6
			}
			if _, err := condGroup("net1", family, true, conds); err != nil {
				t.Error(err)
			}
		}
	})
}
