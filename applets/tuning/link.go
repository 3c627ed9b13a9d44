package tuning

import (
	"fmt"
	"math"
	"strings"

	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// attributes are some attributes of a link. The reference stores former attributes in this format,
// so the keys must not change.
type attributes struct {
	MAC      string `json:"mac,omitempty"`
	Promisc  *bool  `json:"promisc,omitempty"`
	MTU      int    `json:"mtu,omitempty"` // bytes; 0: not set
	AllMulti *bool  `json:"allmulti,omitempty"`
	TxQLen   *int   `json:"txQLen,omitempty"` // packets
}

// held returns the attributes that are set for [spec.Holding], in which names are in camel case.
func (l attributes) held() any {
	return struct {
		MAC      string `json:"mac,omitempty"`
		Promisc  *bool  `json:"promisc,omitempty"`
		MTU      int    `json:"mtu,omitempty"`
		AllMulti *bool  `json:"allMulti,omitempty"`
		TxQLen   *int   `json:"txQLen,omitempty"`
	}(l)
}

// empty reports whether no attribute is set.
func (l attributes) empty() bool { return l == attributes{} }

// validate checks the bounds of numbers, which would be truncated to 32 bits. The kernel reports
// values that the link does not support.
func (l attributes) validate() error {
	if l.MTU < 0 || l.MTU > math.MaxInt32 {
		return spec.KeyErrorf("mtu", `"mtu" %d is not within 0 to %d`, l.MTU, math.MaxInt32)
	}
	if q := l.TxQLen; q != nil && (*q < 0 || *q > math.MaxInt32) {
		return spec.KeyErrorf("txQLen", `"txQLen" %d is not within 0 to %d`, *q, math.MaxInt32)
	}
	return nil
}

// current returns the present values of those attributes that are set, for the record.
func (l attributes) current(link *rtnl.Link) attributes {
	var now attributes
	if l.MAC != "" {
		now.MAC = link.MAC.String()
	}
	if l.Promisc != nil {
		now.Promisc = &link.Promisc
	}
	if l.MTU != 0 {
		now.MTU = link.MTU
	}
	if l.AllMulti != nil {
		now.AllMulti = &link.AllMulti
	}
	if l.TxQLen != nil {
		now.TxQLen = &link.TxQLen
	}
	return now
}

// change returns those attributes that differ from the link's. Some drivers refuse an attribute
// while the link is up, even if it does not change.
func (l attributes) change(link *rtnl.Link) attributes {
	if strings.EqualFold(l.MAC, link.MAC.String()) {
		l.MAC = ""
	}
	if l.Promisc != nil && *l.Promisc == link.Promisc {
		l.Promisc = nil
	}
	if l.MTU == link.MTU {
		l.MTU = 0
	}
	if l.AllMulti != nil && *l.AllMulti == link.AllMulti {
		l.AllMulti = nil
	}
	if l.TxQLen != nil && *l.TxQLen == link.TxQLen {
		l.TxQLen = nil
	}
	return l
}

// ops returns an operation for each attribute, so that an error names its attribute and the others
// are still tried.
func (l attributes) ops(index uint32) []rtnl.Op {
	var ops []rtnl.Op
	add := func(ch rtnl.LinkChange) { ops = append(ops, rtnl.ChangeLink(index, ch)) }
	if mac, err := spec.ParseMAC(l.MAC); err == nil {
		add(rtnl.LinkChange{MAC: mac})
	}
	if l.Promisc != nil {
		add(rtnl.LinkChange{Promisc: l.Promisc})
	}
	if l.MTU > 0 {
		add(rtnl.LinkChange{MTU: &l.MTU})
	}
	if l.AllMulti != nil {
		add(rtnl.LinkChange{AllMulti: l.AllMulti})
	}
	if l.TxQLen != nil {
		add(rtnl.LinkChange{TxQLen: l.TxQLen})
	}
	return ops
}

// withMissing returns the attributes of l, and those of o that l does not have, so that the oldest
// record takes precedence.
func (l attributes) withMissing(o attributes) attributes {
	if l.MAC == "" {
		l.MAC = o.MAC
	}
	if l.MTU == 0 {
		l.MTU = o.MTU
	}
	l.Promisc = first(l.Promisc, o.Promisc)
	l.AllMulti = first(l.AllMulti, o.AllMulti)
	l.TxQLen = first(l.TxQLen, o.TxQLen)
	return l
}

// text formats the attributes that are set, with the MAC address as it was written.
func (l attributes) text(mac string) string {
	var set []string
	add := func(key string, value any) { set = append(set, fmt.Sprintf("%s %v", key, value)) }
	if l.MAC != "" {
		add("mac", mac)
	}
	if l.Promisc != nil {
		add("promisc", *l.Promisc)
	}
	if l.MTU != 0 {
		add("mtu", l.MTU)
	}
	if l.AllMulti != nil {
		add("allmulti", *l.AllMulti)
	}
	if l.TxQLen != nil {
		add("txQLen", *l.TxQLen)
	}
	return strings.Join(set, ", ")
}
