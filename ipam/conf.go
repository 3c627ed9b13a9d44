package ipam

import (
	"fmt"
	"slices"

	"github.com/cnibox/cnibox/internal/state"
)

// A StoreConf has the keys of host-local's "ipam" for the data directory.
type StoreConf struct {
	DataDir         string `json:"dataDir"` // empty: see [state.LeaseDir]
	KeepAcrossBoots bool   `json:"keepAcrossBoots"`
}

// Dir returns the directory of the leases of a network. ADD reports the notice before it creates
// the directory; empty: none.
func (c *StoreConf) Dir(stateDir, network string) (dir, notice string) {
	if c.DataDir != "" {
		return c.DataDir, ""
	}
	return state.LeaseDir(stateDir, network, c.KeepAcrossBoots)
}

// A RangeConf has the keys of host-local's "ipam" for its ranges: the keys of a single range, and a
// list of sets.
type RangeConf struct {
	Range
	Ranges []RangeSet `json:"ranges"`
}

// Sets returns copies of all sets, the single range first, as the reference numbers them. They are
// not complete.
func (c *RangeConf) Sets() (sets []RangeSet) {
	if c.Subnet.IsValid() {
		one := c.Range
		one.Key = "ipam"
		sets = append(sets, RangeSet{one})
	}
	return append(sets, WithKeys("ipam.ranges", c.Ranges)...)
}

// WithKeys returns copies of a key's sets, in which each range has its own key.
func WithKeys(key string, sets []RangeSet) (keyed []RangeSet) {
	for i, set := range sets {
		set = slices.Clone(set)
		for j := range set {
			set[j].Key = fmt.Sprintf("%s[%d][%d]", key, i, j)
		}
		keyed = append(keyed, set)
	}
	return keyed
}
