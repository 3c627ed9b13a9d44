package nft

import (
	"sync"

	"golang.org/x/sys/unix"

	"cnibox/internal/netns"
)

// A container may publish thousands of ports, as servers for RTP do, with four elements of two
// families for each. A question to the kernel about each takes longer than reading all.

const mostAsked = 64 // keys of a set, or handles of a chain; for more, it is read

// knownSet is what the kernel has in a set of host ports, once that was read; before, how many
// keys it was asked about.
type knownSet struct {
	asked    int
	elements map[string]*Element // by key; nil: not read
}

// lacks reports whether the key is known to be in no element.
func (k *knownSet) lacks(key []byte) bool {
	return k != nil && k.elements != nil && k.elements[string(key)] == nil
}

// isPorts reports whether the set has host ports, or what belongs to them.
func (s *set) isPorts() bool { return s.kind == KindPortMap && !s.isByOwner() }

// read returns the element with the key; nil if there is none. The kernel looks it up,
// but a set of host ports about which many questions come is read as a whole.
func (x *Tx) read(set *set, key []byte) (*Element, error) {
	if !set.isPorts() {
		return x.s.getElement(set, key)
	}
	k := x.known[set]
	if k == nil {
		k = &knownSet{}
		x.known[set] = k
	}
	if k.elements == nil && k.asked < mostAsked {
		k.asked++
		return x.s.getElement(set, key)
	}
	if k.elements == nil {
		var err error
		if k, err = x.readSet(set); err != nil {
			return nil, err
		}
		x.known[set] = k
	}
	return k.elements[string(key)], nil
}

// readSet reads a set. CHECK of many attachments reads it once, as long as nothing changes the rule set:
// then it would be the same.
func (x *Tx) readSet(ports *set) (*knownSet, error) {
	if !x.checks {
		return x.s.readSet(ports)
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
		lastRead.ns, lastRead.gen, lastRead.sets = id, x.gen, map[*set]*knownSet{}
	}
	k := lastRead.sets[ports]
	if k == nil {
		if k, err = x.s.readSet(ports); err != nil {
			return nil, err
		}
		lastRead.sets[ports] = k
	}
	return k, nil
}

// generation reads the number of the rule set, which changes with each batch of any process.
func (x *Tx) generation() error {
	if x.gen != 0 {
		return nil
	}
	err := x.s.request(nfTables|unix.NFT_MSG_GETGEN, 0, unix.NFPROTO_UNSPEC, nil, func(_ byte, data []byte) {
		x.gen = uint32(num(data, unix.NFTA_GEN_ID))
	})
	return ignoreNotExist(err)
}

// lastRead are the sets that CHECK has read, and the generation that the rule set had before.
var lastRead struct {
	sync.Mutex
	ns   netns.ID
	gen  uint32
	sets map[*set]*knownSet // that nothing changes
}

func (s *sock) readSet(set *set) (*knownSet, error) {
	k := &knownSet{elements: map[string]*Element{}}
	return k, s.elements(set, nil, func(e Element) { k.elements[string(e.key)] = &e })
}
