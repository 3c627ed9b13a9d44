package ipam

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"io"
	"math/bits"
	"net/netip"

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
	// 1 kB: searches that go beyond are rare below seven of ten slots.
	window = 32 // slots read at once
)

// Neither fails a verb: the index is made anew, bigger in the second case.
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

// encode returns the header: magic, slots, count, boot, stamp, and a sum in the
// last four of its bytes.
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
// Anything that this program would not have written is errIndex, since sizes read from
// it become memory.
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

// indexSize returns the size of an index file in bytes.
func indexSize(slots uint32) int64 { return headSize + int64(slots)*slotSize }

// An entry is a lease in the index.
// It is comparable; the address has no zone and is not IPv4-mapped.
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
// A slot that is neither empty nor whole is errIndex: a write that was cut off.
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

// checksum is FNV-1a: it is to find damage, not malice, since no hit is believed
// without its lease file.
func checksum(b []byte) uint32 {
	h := fnv.New32a()
	h.Write(b)
	return h.Sum32()
}

// ownerHash is the key of a lease's owner. Its low bits choose the slot, so the
// high ones are folded into them.
// The text has both names, so two interfaces of a container are two owners.
func ownerHash(l Lease) uint64 {
	h := fnv.New64a()
	io.WriteString(h, l.text())
	sum := h.Sum64()
	return sum ^ sum>>29
}

// An onDisk is the open file of an index.
// Tests can let its writes fail.
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
