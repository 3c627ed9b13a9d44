package nft

import (
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/session"
)

// A container may publish thousands of ports, as RTP servers do, and each has four elements of two
// families. Getting each element takes longer than dumping the set.

const mostAsked = 64 // keys of a set, or handles of a chain; for more, the set or chain is dumped

// askedSet has the kernel's elements of a set of host ports, once that was dumped; before, how many
// keys were requested.
type askedSet struct {
	gets     int
	elements map[string]*Element // by key; nil: not dumped
}

// isPorts reports whether the set has host ports, or data that belongs to them.
func (s *set) isPorts() bool { return s.kind == KindPortMap }

// read returns the element with the key; nil if there is none. The kernel looks it up, but a set of
// host ports is dumped after many requests.
func (x *Tx) read(set *set, key []byte) (*Element, error) {
	if !set.isPorts() {
		return x.s.getElement(set, key)
	}
	k := x.asked[set]
	if k == nil {
		k = &askedSet{}
		x.asked[set] = k
	}
	if k.elements == nil && k.gets < mostAsked {
		k.gets++
		return x.s.getElement(set, key)
	}
	if k.elements == nil {
		var err error
		if k, err = x.readSet(set); err != nil {
			return nil, err
		}
		x.asked[set] = k
	}
	return k.elements[string(key)], nil
}

// readSet dumps a set. CHECK of many attachments dumps it once, as long as the generation of the
// rule set does not change.
func (x *Tx) readSet(ports *set) (*askedSet, error) {
	if x.session == nil {
		return x.s.readSet(ports)
	}
	gen, err := x.s.generation()
	if err != nil {
		return nil, err
	}
	if gen == 0 { // unknown
		return x.s.readSet(ports)
	}
	return session.Ask(x.session, setAt{ports, gen}, func() (*askedSet, error) { return x.s.readSet(ports) })
}

// setAt is the key of a set that CHECK has dumped, and the generation of the rule set before that.
type setAt struct {
	set *set
	gen uint32
}

// generation reads the generation ID of the rule set, which changes with each batch of any process; 0: unknown.
func (s *sock) generation() (gen uint32, err error) {
	err = s.request(nfTables|unix.NFT_MSG_GETGEN, 0, unix.NFPROTO_UNSPEC, nil, func(_ byte, data []byte) {
		gen = uint32(num(data, unix.NFTA_GEN_ID))
	})
	return gen, ignoreNotExist(err)
}

func (s *sock) readSet(set *set) (*askedSet, error) {
	k := &askedSet{elements: map[string]*Element{}}
	return k, s.elements(set, nil, func(e Element) { k.elements[string(e.key)] = &e })
}
