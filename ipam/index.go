package ipam

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
)

// space is where the table of an index lies: its file, or memory where that
// cannot be written.
// Offsets are those of the file in both.
type space interface {
	io.ReaderAt
	io.WriterAt
}

// An index finds addresses by their owner.
//
// It is a hint, whatever it says: files are removed by other tools as well. Its use is
// that a DEL among 60,000 leases reads one of them and not all. Methods keep the number
// of slots a power of two and at least three of ten of them empty.
type index struct {
	head
	space
}

// newImage returns an index in memory with room to grow: it has 1.6 slots an entry or
// more. Its bytes are those of the file but for the header. boot is for that.
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
// In no order. Two owners of one hash are told apart by their files.
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
// One that is there already is not entered twice. It grows to seven of ten slots.
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
// One that is not there is fine.
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
		// Distances go around the table, hence the mask.
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
// A slot lies within one block of the disk; one that was torn all the same is found by
// its sum.
func (x *index) put(at uint32, slot []byte) error {
	_, err := x.WriteAt(slot, headSize+int64(at)*slotSize)
	return err
}

// probe visits the slots from the home of a hash on until visit returns false.
// A table without an empty slot is damaged.
// It reads a window of slots at a time, since one read costs more than what it reads.
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
// In no order. It reads the table at once: 4 MB for 60,000 leases.
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
