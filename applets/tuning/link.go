package tuning

import (
	"math"
	"strings"

	"cnibox/rtnl"
	"cnibox/spec"
)

// A tuningLink is a choice of attributes of a link. It is also the reference's
// file of former attributes, so its keys must not change.
type tuningLink struct {
	MAC      string `json:"mac,omitempty"`
	Promisc  *bool  `json:"promisc,omitempty"`
	MTU      int    `json:"mtu,omitempty"` // bytes; 0: not chosen
	AllMulti *bool  `json:"allmulti,omitempty"`
	TxQLen   *int   `json:"txQLen,omitempty"` // packets
}

// empty reports that nothing is chosen.
func (l tuningLink) empty() bool { return l == tuningLink{} }

// validate bounds what the kernel would cut to 32 bits.
// It is not asked whether the link can have them: the kernel knows, and says so.
func (l tuningLink) validate() error {
	if l.MTU < 0 || l.MTU > math.MaxInt32 {
		return spec.KeyErrorf("mtu", `"mtu" %d is not within 0 to %d`, l.MTU, math.MaxInt32)
	}
	if q := l.TxQLen; q != nil && (*q < 0 || *q > math.MaxInt32) {
		return spec.KeyErrorf("txQLen", `"txQLen" %d is not within 0 to %d`, *q, math.MaxInt32)
	}
	return nil
}

// current returns what the chosen attributes are now.
// It is what goes on record: nothing but what is about to change.
func (l tuningLink) current(link *rtnl.Link) tuningLink {
	var now tuningLink
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

// change returns those of the attributes that the link does not have.
// An attribute that is right already is not set again: some drivers refuse even that
// while the link is up.
func (l tuningLink) change(link *rtnl.Link) tuningLink {
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

// ops are the changes that set the attributes, one each, so that the error of
// one names it and the others are tried all the same.
// The address goes first, as in the reference.
func (l tuningLink) ops(index uint32) []rtnl.Op {
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

// or returns the attributes of l, and those of o that l does not have.
// So the oldest record wins, whatever a second ADD finds.
func (l tuningLink) or(o tuningLink) tuningLink {
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
