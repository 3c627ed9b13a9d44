package chained

import (
	"net/netip"
	"testing"

	"github.com/cnibox/cnibox/spec"
	"github.com/cnibox/cnibox/spec/spectest"
)

// A new table is not in use, and not one that every namespace has.
func TestFreeTable(t *testing.T) {
	used := map[int]bool{1: true, 252: true}
	for _, tt := range []struct{ from, want int }{{1, 2}, {1, 3}, {252, 256}, {252, 257}} {
		if got := FreeTable(used, tt.from); got != tt.want {
			t.Errorf("from %d: got %d, want %d", tt.from, got, tt.want)
		}
	}
}

func TestSetTables(t *testing.T) {
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	moved := []MovedRoute{{prefix("0.0.0.0/0"), addr("10.1.0.1"), addr("10.1.0.9"), 100}, {prefix("192.0.2.0/24"), addr("10.1.0.1"), addr("10.1.0.1"), 101}}
	own := 500
	routes := []spec.Route{
		{Dst: prefix("0.0.0.0/0"), GW: addr("10.1.0.7")}, {Dst: prefix("192.0.2.7/24")},
		{Dst: prefix("192.0.2.0/24"), GW: addr("10.1.0.2")}, {Dst: prefix("0.0.0.0/0"), Table: &own},
	}
	for version, want := range map[string][4]int{"1.1.0": {100, 101, 0, 500}, "1.0.0": {-1, -1, 0, 500}} {
		r := spectest.Request(t, spec.Add, `{"cniVersion":"`+version+`"}`, "")
		r.Prev = (&spec.Result{Routes: routes}).Clone()
		SetTables(r, moved)
		i := 0
		for _, table := range want {
			if table < 0 {
				continue
			}
			got := r.Prev.Routes[i]
			if table == 0 && got.Table != nil || table != 0 && (got.Table == nil || *got.Table != table) {
				t.Errorf("%s: route %d: got %+v, want table %d", version, i, got, table)
			}
			i++
		}
		if i != len(r.Prev.Routes) || version == "1.1.0" && r.Prev.Routes[0].GW != moved[0].To {
			t.Errorf("%s: got %+v", version, r.Prev.Routes)
		}
	}
}
