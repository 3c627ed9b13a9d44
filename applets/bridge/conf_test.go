package bridge

import (
	"reflect"
	"testing"

	"github.com/cnibox/cnibox/rtnl"
)

// The VLANs of a port are in as few ranges as possible, sorted and without duplicates, and the
// untagged one is marked.
func TestBridgeWantedVLANs(t *testing.T) {
	for name, tt := range map[string]struct {
		vlan  int
		trunk []vlanTrunk
		want  []rtnl.VLANRange
	}{
		"untagged":    {5, nil, []rtnl.VLANRange{{From: 5, To: 5, PVID: true, Untagged: true}}},
		"trunk alone": {0, []vlanTrunk{{ID: new(7)}}, []rtnl.VLANRange{{From: 1, To: 1, PVID: true, Untagged: true}, {From: 7, To: 7}}},
		"range with an id, and doubles": {0, []vlanTrunk{{MinID: new(2), MaxID: new(4), ID: new(3)}, {ID: new(5)}},
			[]rtnl.VLANRange{{From: 1, To: 1, PVID: true, Untagged: true}, {From: 2, To: 5}}},
		"the untagged one amid the range": {3, []vlanTrunk{{MinID: new(2), MaxID: new(4)}},
			[]rtnl.VLANRange{{From: 2, To: 2}, {From: 3, To: 3, PVID: true, Untagged: true}, {From: 4, To: 4}}},
		"all": {1, []vlanTrunk{{MinID: new(1), MaxID: new(4094)}},
			[]rtnl.VLANRange{{From: 1, To: 1, PVID: true, Untagged: true}, {From: 2, To: 4094}}},
	} {
		t.Run(name, func(t *testing.T) {
			c := plugin{VLAN: tt.vlan, VLANTrunk: tt.trunk}
			if got := c.wantedVLANs(); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}
