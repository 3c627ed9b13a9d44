package nft

import (
	"sync"

	"golang.org/x/sys/unix"

	"cnibox/internal/netns"
)

// A container may publish thousands of ports, as servers for RTP do, with four elements of two
// families for each. A question to the kernel about each takes longer than reading all.

const mostAsked = 64 // keys of a set, or handles of a chain; for more, it is read

// known is what the kernel has in a set of host ports, once that was read; before, how many
// keys it was asked about.
type known struct {
	asked    int
	elements map[string]*Element // by key; nil: not read
}

// lacks reports whether the key is known to be in no element.
func (k *known) lacks(key []byte) bool {
	return k != nil && k.elements != nil && k.elements[string(key)] == nil
}

// isPorts reports whether the set has host ports, or what belongs to them.
func (s *set) isPorts() bool { return s.kind == KindPortMap && !s.isByOwner() }

// read returns the element with the key; nil if there is none. The kernel looks it up,
// but a set of host ports about which many questions come is read as a whole.
func (x *Tx) read(in *set, key []byte) (*Element, error) {
	if !in.isPorts() {
		return x.s.elementAt(in, key)
	}
	k := x.known[in]
	if k == nil {
		k = &known{}
		x.known[in] = k
	}
	if k.elements == nil && k.asked < mostAsked {
		k.asked++
		return x.s.elementAt(in, key)
	}
	if k.elements == nil {
		var err error
		if k, err = x.whole(in); err != nil {
			return nil, err
		}
		x.known[in] = k
	}
	return k.elements[string(key)], nil
}

// whole reads a set. CHECK of many attachments reads it once, as long as nothing changes the rule set:
// then it would be the same.
func (x *Tx) whole(in *set) (*known, error) {
	if !x.checks {
		return x.s.known(in)
	}
	id, err := x.s.ns.ID()
	if err == nil {
		err = x.generation()
	}
	if err != nil {
		return nil, err
	}
	lastRead.Lock()
	defer lastRead.Unlock()
	if lastRead.ns != id || lastRead.gen != x.gen || x.gen == 0 {
		lastRead.ns, lastRead.gen, lastRead.sets = id, x.gen, map[*set]*known{}
	}
	k := lastRead.sets[in]
	if k == nil {
		if k, err = x.s.known(in); err != nil {
			return nil, err
		}
		lastRead.sets[in] = k
	}
	return k, nil
}

// generation reads the number of the rule set, which changes with each batch of any process.
func (x *Tx) generation() error {
	if x.gen != 0 {
		return nil
	}
	err := x.s.ask(nfTables|unix.NFT_MSG_GETGEN, 0, unix.NFPROTO_UNSPEC, nil, func(_ byte, data []byte) {
		x.gen = uint32(num(data, unix.NFTA_GEN_ID))
	})
	return absent(err)
}

// lastRead are the sets that CHECK has read, and the generation that the rule set had before.
var lastRead struct {
	sync.Mutex
	ns   netns.ID
	gen  uint32
	sets map[*set]*known // that nothing changes
}

func (s *sock) known(in *set) (*known, error) {
	k := &known{elements: map[string]*Element{}}
	return k, s.elements(in, nil, func(e Element) { k.elements[string(e.key)] = &e })
}
