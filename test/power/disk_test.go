package main

import (
	"bytes"
	"context"
	"testing"
)

// After a cut, flushed writes are on the disk, and any selection of the later ones, in whole
// sectors.
func TestCut(t *testing.T) {
	d := &disk{size: 4 * blockSize, now: blocks{}}
	f := &diskFile{d: d}
	write := func(b byte, off int64) {
		if _, errno := f.Write(context.Background(), nil, bytes.Repeat([]byte{b}, blockSize), off); errno != 0 {
			t.Fatal(errno)
		}
	}
	write('0', 0) // before the record
	d.record()
	write('1', blockSize)
	f.Fsync(context.Background(), nil, 0)
	write('2', blockSize)
	write('3', 2*blockSize-sectorSize) // over the end of a block
	write('4', 0)                      // after the cut
	seen := map[string]bool{}
	for seed := range uint64(200) {
		content, l := d.cut(4, random(seed))
		all := make([]byte, d.size)
		content.readAt(all, 0)
		sectors := ""
		for i := 0; i < len(all); i += sectorSize {
			if sector := all[i : i+sectorSize]; bytes.Count(sector, sector[:1]) != sectorSize {
				t.Fatalf("seed %d: part of a sector", seed)
			}
			sectors += string(max(all[i], ' '))
		}
		if l.pending != 2 || sectors[:8] != "00000000" || sectors[8] == ' ' || sectors[8] == '3' {
			t.Errorf("seed %d: %+v: %q", seed, l, sectors)
		}
		seen[sectors] = true
	}
	none, both := "00000000"+"11111111"+"                ", "00000000"+"22222223"+"3333333         "
	if !seen[none] || !seen[both] || len(seen) < 10 {
		t.Errorf("the same cut each time: %v", seen)
	}
}
