package nft

import (
	"strings"
	"testing"
)

func TestParseConditions(t *testing.T) {
	tests := map[string]struct {
		tokens string // separated by |
		ip6    bool
		want   string // rules, separated by ;
		err    string // part of the error
	}{
		"none":            {},
		"source":          {tokens: "-s|10.0.0.0/8", want: "ip saddr 10.0.0.0/8"},
		"not destination": {tokens: "!|-d|192.0.2.7", want: "ip daddr != 192.0.2.7"},
		"list":            {tokens: "--source|10.0.0.1,10.0.1.0/24", want: "ip saddr 10.0.0.1; ip saddr 10.0.1.0/24"},
		"not list":        {tokens: "!|-s|10.0.0.1,10.0.1.0/24", want: "ip saddr != 10.0.0.1 ip saddr != 10.0.1.0/24"},
		"host bits":       {tokens: "-s|10.1.2.3/8", want: "ip saddr 10.0.0.0/8"},
		"everything":      {tokens: "-s|0.0.0.0/0", want: "ip saddr 0.0.0.0/0"},
		"equals sign":     {tokens: "--source=10.0.0.1", want: "ip saddr 10.0.0.1"},
		"interface":       {tokens: "-i|eth0", want: `iifname "eth0"`},
		"interfaces":      {tokens: "!|-i|eth+", want: `iifname != "eth*"`},
		"tcp":             {tokens: "-p|tcp|-m|tcp|--dport|80:90|--sport|1024:", want: "meta l4proto tcp th dport 80-90 th sport 1024-65535"},
		"multiport":       {tokens: "-m|multiport|--dports|80,443", want: "th dport 80; th dport 443"},
		"all protocols":   {tokens: "-p|all", want: ""},
		"mark":            {tokens: "-m|mark|!|--mark|0x1/0xff", want: "meta mark != 0x1/0xff"},
		"comment":         {tokens: "-m|comment|--comment|made by hand|-s|10.0.0.1", want: "ip saddr 10.0.0.1"},
		"IPv6":            {tokens: "-s|fd00::/64", ip6: true, want: "ip6 saddr fd00::/64"},
		"nft":             {tokens: "ip|saddr|!=|10.0.0.0/8", want: "ip saddr != 10.0.0.0/8"},
		"nft in one":      {tokens: "ip daddr {10.0.0.1,10.0.0.2} tcp dport 80-90", want: "ip daddr 10.0.0.1 meta l4proto tcp th dport 80-90; ip daddr 10.0.0.2 meta l4proto tcp th dport 80-90"},
		"nft names":       {tokens: `iifname "eth0" oifname != br*`, want: `iifname "eth0" oifname != "br*"`},
		"nft marks":       {tokens: "meta mark & 0xff == 1 ct mark 0x10", want: "meta mark 0x1/0xff ct mark 0x10"},
		"nft protocol":    {tokens: "meta l4proto {tcp, udp}", want: "meta l4proto tcp; meta l4proto udp"},
		"nft IPv6":        {tokens: "ip6 saddr fd00::1", ip6: true, want: "ip6 saddr fd00::1"},

		"unknown option":    {tokens: "-j|ACCEPT", err: `"-j" is not understood; understood are`},
		"unknown match":     {tokens: "-m|owner", err: `match "owner"`},
		"no value":          {tokens: "-s", err: `nothing follows "-s"`},
		"only not":          {tokens: "!", err: `nothing follows "!"`},
		"bad address":       {tokens: "-s|10.0.0.300", err: `"10.0.0.300" is no address`},
		"name":              {tokens: "-s|example.com", err: `"example.com" is no address`},
		"other family":      {tokens: "-s|fd00::1", err: "other address family"},
		"other family, nft": {tokens: "ip saddr 10.0.0.1", ip6: true, err: `"ip saddr" is of the other`},
		"bad port":          {tokens: "--dport|http", err: `"http" is no port`},
		"bad range":         {tokens: "--dport|90:80", err: "is no port"},
		"long interface":    {tokens: "-i|abcdefghijklmnopq", err: "is no interface"},
		"mask of nothing":   {tokens: "--mark|1/0", err: "is no mark"},
		"unknown nft":       {tokens: "fib saddr type local", err: `"fib" is not understood`},
		"open brace":        {tokens: "ip saddr { 10.0.0.1", err: `nothing follows "{"`},
		"empty braces":      {tokens: "ip saddr { }", err: "between { and }"},
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
			if got := conditionText(t, conds, tt.ip6); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// conditionText writes the rules of conditions without what all have.
func conditionText(t *testing.T, conds []Match, ip6 bool) string {
	family := v4
	if ip6 {
		family = v6
	}
	c, err := condGroup("net1", family, true, conds)
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, r := range c.rules {
		text := strings.TrimPrefix(ruleText(inet, r.list()), "meta nfproto "+familyName(family))
		texts = append(texts, strings.TrimSpace(strings.TrimSuffix(text, "goto "+condChain(family, true))))
	}
	return strings.Join(texts, "; ")
}

// Conditions that differ must not share a chain, nor networks or families.
func TestCondGroupName(t *testing.T) {
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
	for _, s := range []string{"-s|10.0.0.0/8|!|-i|eth+", "ip saddr { 10.0.0.1, 10.0.0.2 } tcp dport 1-2", "meta mark & 0xff == 1", "!"} {
		f.Add(s, false)
		f.Add(s, true)
	}
	f.Fuzz(func(t *testing.T, s string, ip6 bool) {
		conds, err := ParseConditions(strings.Split(s, "|"), ip6)
		if err == nil {
			conditionText(t, conds, ip6)
		}
	})
}
