package rtnl

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

func TestPolicyDropping(t *testing.T) {
	prefix := func(text string) netip.Prefix { return netip.MustParsePrefix(text) }
	local, main := Rule{Table: unix.RT_TABLE_LOCAL}, Rule{Table: unix.RT_TABLE_MAIN, Priority: 32766}
	black := func(dst string, table int, metric int) Route {
		return Route{Dst: prefix(dst), Table: table, Type: unix.RTN_BLACKHOLE, Priority: metric}
	}
	way := Route{Dst: prefix("10.1.0.0/24"), Table: unix.RT_TABLE_MAIN, Type: unix.RTN_UNICAST}
	tests := map[string]struct {
		rules  []Rule
		routes []Route
		want   string
	}{
		"nothing":        {[]Rule{local, main}, []Route{way}, ""},
		"rule":           {[]Rule{{Dst: prefix("10.1.0.2/32"), Drops: unix.FR_ACT_PROHIBIT, More: true, Priority: 7}, main}, []Route{way}, "rule 7: to 10.1.0.2 prohibit"},
		"rule for both":  {[]Rule{{Src: prefix("10.2.0.0/16"), Dst: prefix("10.1.0.0/16"), IIF: "br1", Drops: unix.FR_ACT_BLACKHOLE, More: true}}, nil, "rule 0: from 10.2.0.0/16 to 10.1.0.0/16 iif br1 blackhole"},
		"another link":   {[]Rule{{IIF: "br2", Drops: unix.FR_ACT_BLACKHOLE, More: true}}, nil, ""},
		"another source": {[]Rule{{Src: prefix("10.3.0.0/16"), Drops: unix.FR_ACT_BLACKHOLE, More: true}}, nil, ""},
		"mark":           {[]Rule{{Mark: 1, Drops: unix.FR_ACT_BLACKHOLE, More: true}}, nil, ""},
		"ports":          {[]Rule{{More: true, Table: 5}, main}, []Route{black("10.1.0.0/24", 5, 0), way}, ""},
		"route":          {[]Rule{local, main}, []Route{way, black("10.1.0.2/32", unix.RT_TABLE_MAIN, 0)}, "route blackhole 10.1.0.2/32"},
		"shorter route":  {[]Rule{local, main}, []Route{way, black("10.0.0.0/8", unix.RT_TABLE_MAIN, 0)}, ""},
		"larger metric":  {[]Rule{main}, []Route{black("10.1.0.0/24", unix.RT_TABLE_MAIN, 9), way}, ""},
		"another table":  {[]Rule{{Table: 100}, main}, []Route{way, black("0.0.0.0/0", 100, 5)}, "route blackhole default table 100 metric 5"},
		"empty table":    {[]Rule{{Table: 100}, main}, []Route{black("10.1.0.0/24", unix.RT_TABLE_MAIN, 0)}, "route blackhole 10.1.0.0/24"},
	}
	for name, tt := range tests {
		p := &Policy{rules: map[bool][]Rule{true: tt.rules}, routes: tt.routes}
		got := ""
		if d := p.Dropping(netip.MustParseAddr("10.2.0.2"), netip.MustParseAddr("10.1.0.2"), "br1"); d != nil {
			got = d.Text
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
