package ipam

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/bits"
	"net/netip"
	"slices"

	"cnibox/internal/fault"
)

// The index file is a header and a power of two of slots, all in little endian:
// a hash table with linear probing from an owner to its addresses. It is never
// believed without a look at the lease file.
const (
	indexMagic = "cniboxL1"
	headSize   = 64
	slotSize   = 32
	minSlots   = 128
	maxSlots   = 1 << 26
	window     = 32 // slots read at once
)

var (
	errIndex = errors.New("damaged index")
	errFull  = errors.New("index is full")
)

// A stamp is the time of modification that the store gave the directory of the
// leases after its last change. Any other time there says that someone else, or
// a process that was killed, changed it later.
type stamp struct{ sec, nsec int64 }

// A head is the header of an index.
type head struct {
	slots uint32
	count uint32 // used slots
	boot  uint64 // hash of the boot's ID in which the leases are; 0: boots do not count
	stamp stamp
}

func (h head) encode() []byte {
	b := make([]byte, headSize)
	copy(b, indexMagic)
	le := binary.LittleEndian
	le.PutUint32(b[8:], h.slots)
	le.PutUint32(b[12:], h.count)
	le.PutUint64(b[16:], h.boot)
	le.PutUint64(b[24:], uint64(h.stamp.sec))
	le.PutUint64(b[32:], uint64(h.stamp.nsec))
	le.PutUint32(b[60:], checksum(b[:60]))
	return b
}

// decodeHead reads a header and compares it with the size of its file in bytes.
func decodeHead(b []byte, size int64) (head, error) {
	le := binary.LittleEndian
	if len(b) != headSize || string(b[:8]) != indexMagic || le.Uint32(b[60:]) != checksum(b[:60]) {
		return head{}, errIndex
	}
	h := head{
		slots: le.Uint32(b[8:]),
		count: le.Uint32(b[12:]),
		boot:  le.Uint64(b[16:]),
		stamp: stamp{int64(le.Uint64(b[24:])), int64(le.Uint64(b[32:]))},
	}
	if bits.OnesCount32(h.slots) != 1 || h.slots < minSlots || h.slots > maxSlots ||
		h.count >= h.slots || size != indexSize(h.slots) {
		return head{}, errIndex
	}
	return h, nil
}

func indexSize(slots uint32) int64 { return headSize + int64(slots)*slotSize }

// An entry is a lease in the index.
type entry struct {
	owner uint64 // ownerHash
	addr  netip.Addr
}

// encode returns a slot: hash, address in 16 bytes, family, sum. An empty slot
// is all zero.
func (e entry) encode() []byte {
	b := make([]byte, slotSize)
	addr := e.addr.As16()
	binary.LittleEndian.PutUint64(b, e.owner)
	copy(b[8:], addr[:])
	b[24] = 4
	if e.addr.Is6() {
		b[24] = 6
	}
	binary.LittleEndian.PutUint32(b[28:], checksum(b[:28]))
	return b
}

// decodeEntry reads a slot; used is false for an empty one.
func decodeEntry(b []byte) (e entry, used bool, err error) {
	if binary.LittleEndian.Uint32(b[28:]) != checksum(b[:28]) || b[24] != 4 && b[24] != 6 {
		for _, c := range b[:slotSize] {
			if c != 0 {
				return entry{}, false, errIndex
			}
		}
		return entry{}, false, nil
	}
	e.owner = binary.LittleEndian.Uint64(b)
	e.addr = netip.AddrFrom16([16]byte(b[8:24]))
	if b[24] == 4 {
		e.addr = e.addr.Unmap()
	}
	return e, true, nil
}

func checksum(b []byte) uint32 {
	h := fnv.New32a()
	h.Write(b)
	return h.Sum32()
}

// ownerHash is the key of a lease's owner. Its low bits choose the slot, so the
// high ones are folded into them.
func ownerHash(l Lease) uint64 {
	h := fnv.New64a()
	io.WriteString(h, l.text())
	sum := h.Sum64()
	return sum ^ sum>>29
}

// space is where the table of an index lies: its file, or memory where that
// cannot be written.
type space interface {
	io.ReaderAt
	io.WriterAt
}

// An index finds addresses by their owner.
type index struct {
	head
	space
}

// newImage returns an index in memory with room to grow. It has the bytes of
// the file.
func newImage(entries []entry, boot uint64) (image, *index) {
	slots := uint32(minSlots)
	for uint64(slots)*5 < uint64(len(entries))*8+80 && slots < maxSlots {
		slots *= 2
	}
	im := make(image, indexSize(slots))
	x := &index{head{slots: slots, boot: boot}, im}
	for _, e := range entries {
		if x.add(e) != nil {
			break // more leases than maxSlots: the rest is found by no index
		}
	}
	return im, x
}

// find returns the addresses of an owner.
func (x *index) find(owner uint64) (found []netip.Addr, err error) {
	err = x.probe(owner, func(_ uint32, e entry, used bool) bool {
		if used && e.owner == owner {
			found = append(found, e.addr)
		}
		return used
	})
	return found, err
}

// add enters a lease; errFull asks for a bigger index.
func (x *index) add(e entry) error {
	if uint64(x.count+1)*10 > uint64(x.slots)*7 {
		return errFull
	}
	known, free := false, uint32(0)
	err := x.probe(e.owner, func(at uint32, other entry, used bool) bool {
		known, free = used && other == e, at
		return used && !known
	})
	if err != nil || known {
		return err
	}
	x.count++
	return x.put(free, e.encode())
}

// remove takes a lease out. The entries behind it move up, so that no search
// ends before them and no slot is lost.
func (x *index) remove(e entry) error {
	known, hole := false, uint32(0)
	err := x.probe(e.owner, func(at uint32, other entry, used bool) bool {
		known, hole = used && other == e, at
		return used && !known
	})
	if err != nil || !known {
		return err
	}
	mask := x.slots - 1
	var putErr error
	err = x.probe(uint64(hole+1), func(at uint32, other entry, used bool) bool {
		if !used {
			return false
		}
		home := uint32(other.owner) & mask
		if (at-home)&mask < (at-hole)&mask {
			return true // it would stand before its home
		}
		putErr = x.put(hole, other.encode())
		hole = at
		return putErr == nil
	})
	if err := cmp.Or(err, putErr); err != nil {
		return err
	}
	x.count--
	return x.put(hole, make([]byte, slotSize))
}

// put writes one slot.
func (x *index) put(at uint32, slot []byte) error {
	_, err := x.WriteAt(slot, headSize+int64(at)*slotSize)
	return err
}

// probe visits the slots from the home of a hash on until visit returns false.
// A table without an empty slot is damaged.
func (x *index) probe(hash uint64, visit func(at uint32, e entry, used bool) bool) error {
	at := uint32(hash) & (x.slots - 1)
	for done := uint32(0); done < x.slots; {
		n := min(window, x.slots-at, x.slots-done)
		buf := make([]byte, n*slotSize)
		if _, err := x.ReadAt(buf, headSize+int64(at)*slotSize); err != nil {
			return fmt.Errorf("%w: %w", errIndex, err)
		}
		for slot := range slices.Chunk(buf, slotSize) {
			e, used, err := decodeEntry(slot)
			if err != nil {
				return err
			}
			if !visit(at, e, used) {
				return nil
			}
			at++
		}
		at &= x.slots - 1
		done += n
	}
	return errIndex
}

// all returns every entry.
func (x *index) all() ([]entry, error) {
	buf := make([]byte, int64(x.slots)*slotSize)
	if _, err := x.ReadAt(buf, headSize); err != nil {
		return nil, fmt.Errorf("%w: %w", errIndex, err)
	}
	entries := make([]entry, 0, x.count)
	for slot := range slices.Chunk(buf, slotSize) {
		e, used, err := decodeEntry(slot)
		if err != nil {
			return nil, err
		}
		if used {
			entries = append(entries, e)
		}
	}
	return entries, nil
}

// An onDisk is the open file of an index.
type onDisk int

// ReadAt is as in [io.ReaderAt].
func (f onDisk) ReadAt(p []byte, off int64) (int, error) { return file(f).ReadAt(p, off) }

// WriteAt is as in [io.WriterAt].
func (f onDisk) WriteAt(p []byte, off int64) (int, error) {
	if err := fault.Check("ipam: write index"); err != nil {
		return 0, err
	}
	return file(f).WriteAt(p, off)
}

// An image is an index in memory.
type image []byte

// ReadAt is as in [io.ReaderAt].
func (m image) ReadAt(p []byte, off int64) (int, error) {
	if off > int64(len(m)) {
		return 0, io.EOF
	}
	n := copy(p, m[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt is as in [io.WriterAt]; the image does not grow.
func (m image) WriteAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > int64(len(m)) {
		return 0, io.ErrShortWrite
	}
	return copy(m[off:], p), nil
}
