package ipam

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

func TestSortAddrs(t *testing.T) {
	var want []netip.Addr
	for _, s := range []string{"0.0.0.0", "9.255.0.1", "10.0.0.2", "10.0.0.10", "255.0.0.1", "::1", "2001:db8::a", "2001:db8::10", "fd00::"} {
		want = append(want, netip.MustParseAddr(s))
	}
	for range 20 {
		got := slices.Clone(want)
		rand.Shuffle(len(got), func(i, j int) { got[i], got[j] = got[j], got[i] })
		if sortAddrs(got); !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
}
