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
// keys it was asked about. Without pointers, since there may be 100,000.
type known struct {
	asked    int
	elements map[portKey]portData // nil: not read
	from     []knownFrom
	index    map[knownFrom]uint32 // into from
}

// A portKey is the key of an element for a host port, filled up with zeros: address,
// protocol and port at most.
type portKey [24]byte

// A portData is the target of such an element, and its owner.
type portData struct {
	to   [20]byte // address and port, filled up with zeros
	from uint32   // index into known.from
}

// knownFrom is what elements share: mostly all of one owner.
type knownFrom struct{ chain, comment string }

// get finds an element in what was read.
func (k *known) get(key []byte) (portData, bool) {
	var p portKey
	copy(p[:], key)
	d, ok := k.elements[p]
	return d, ok
}

// lacks reports whether the key is known to be in no element.
func (k *known) lacks(key []byte) bool {
	if k == nil || k.elements == nil {
		return false
	}
	_, ok := k.get(key)
	return !ok
}

// add records an element.
func (k *known) add(e *Element) {
	from := knownFrom{e.chain, e.comment}
	at, ok := k.index[from]
	if !ok {
		at = uint32(len(k.from))
		k.index[from] = at
		k.from = append(k.from, from)
	}
	var key portKey
	d := portData{from: at}
	copy(key[:], e.key)
	copy(d.to[:], e.data)
	k.elements[key] = d
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
	d, ok := k.get(key)
	if !ok {
		return nil, nil
	}
	from := k.from[d.from]
	size := uint32(0)
	if !in.verdicts() {
		size = addrLen(in.family) + 4 // a port fills a register
	}
	return &Element{set: in, key: key, data: d.to[:size], chain: from.chain, comment: from.comment}, nil
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

// known reads a set.
func (s *sock) known(in *set) (*known, error) {
	k := &known{elements: map[portKey]portData{}, index: map[knownFrom]uint32{}}
	return k, s.elements(in, nil, func(e Element) { k.add(&e) })
}
