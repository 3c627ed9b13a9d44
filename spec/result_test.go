package spec

import (
	"slices"
	"testing"
)

// An address without the index of an existing interface belongs to any. Sandboxes are compared if
// requested.
func TestAddressesOfInterface(t *testing.T) {
	at := func(i int) *int { return &i }
	res := &Result{
		Interfaces: []Interface{{Name: "br0"}, {Name: "eth0"}, {Name: "eth0", Sandbox: "/a"}, {Name: "eth0", Sandbox: "/b"}},
		IPs:        []IP{{Interface: nil}, {Interface: at(0)}, {Interface: at(1)}, {Interface: at(2)}, {Interface: at(3)}, {Interface: at(7)}, {Interface: at(-1)}},
	}
	for name, tt := range map[string]struct {
		res     *Result
		sandbox func(string) bool
		want    []int // indexes in the list
	}{
		"any":                {res, nil, []int{0, 2, 3, 4, 5, 6}},
		"in any sandbox":     {res, AnySandbox, []int{0, 3, 4, 5, 6}},
		"in one":             {res, func(path string) bool { return path == "/b" }, []int{0, 4, 5, 6}},
		"of no result":       {nil, nil, nil},
		"without interfaces": {&Result{IPs: res.IPs[1:3]}, AnySandbox, []int{1, 2}},
	} {
		var got []int
		for _, ip := range tt.res.Addresses("eth0", tt.sandbox) {
			got = append(got, slices.IndexFunc(res.IPs, func(other IP) bool { return other.Interface == ip.Interface }))
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
}
