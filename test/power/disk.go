package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

const (
	blockSize  = 4096 // bytes
	sectorSize = 512  // bytes that a disk writes atomically
)

// blocks is the content of a disk by block number; a missing block is zero. Blocks are replaced,
// never changed, so a clone keeps its content.
type blocks map[int64]*[blockSize]byte

func (b blocks) writeAt(data []byte, off int64) {
	for len(data) > 0 {
		number, at := off/blockSize, int(off%blockSize)
		block := new([blockSize]byte)
		if old := b[number]; old != nil {
			*block = *old
		}
		n := copy(block[at:], data)
		b[number] = block
		if *block == [blockSize]byte{} {
			delete(b, number)
		}
		data, off = data[n:], off+int64(n)
	}
}

func (b blocks) readAt(p []byte, off int64) {
	for len(p) > 0 {
		number, at := off/blockSize, int(off%blockSize)
		block := b[number]
		if block == nil {
			block = new([blockSize]byte)
		}
		n := copy(p, block[at:])
		p, off = p[n:], off+int64(n)
	}
}

// load reads a file of the disk's size, skipping holes.
func (b blocks) load(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	block := make([]byte, blockSize)
	for off := int64(0); ; off += blockSize {
		off, err = f.Seek(off, unix.SEEK_DATA)
		if err != nil {
			return nil // ENXIO: no data follows
		}
		off -= off % blockSize
		if _, err := f.ReadAt(block, off); err != nil {
			return err
		}
		b.writeAt(block, off)
	}
}

// store writes a sparse file of the disk's size.
func (b blocks) store(path string, size int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		return err
	}
	for number, block := range b {
		if _, err := f.WriteAt(block[:], number*blockSize); err != nil {
			return err
		}
	}
	return nil
}

// A change is a write or, without data, a flush, after which all earlier writes are on the disk.
type change struct {
	off  int64
	data []byte
}

// A disk records its changes. The zero value is not usable: size must be set.
type disk struct {
	size    int64
	mu      sync.Mutex
	start   blocks // content before the first change
	now     blocks
	changes []change
}

// newDisk returns a disk with the content of a file.
func newDisk(path string) (*disk, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	d := &disk{size: info.Size(), now: blocks{}}
	return d, d.now.load(path)
}

// record forgets the changes so far.
func (d *disk) record() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.start, d.changes = maps.Clone(d.now), nil
}

// point returns the number of changes so far.
func (d *disk) point() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.changes)
}

// A loss describes the effect of a power cut on the writes after the last flush.
type loss struct {
	point   int // of the record
	pending int // writes after the last flush
	lost    int
	torn    bool // the last write that was not lost is there in part
}

func (l loss) String() string {
	torn := ""
	if l.torn {
		torn = ", the last one torn"
	}
	return fmt.Sprintf("after %d changes, %d of %d writes lost%s", l.point, l.lost, l.pending, torn)
}

// cut returns the disk after a power cut at a point of the record: all writes up to the last flush,
// and a random selection of those after it, in their order.
func (d *disk) cut(point int, r *rand.Rand) (blocks, loss) {
	flushed := point
	for flushed > 0 && d.changes[flushed-1].data != nil {
		flushed--
	}
	b := maps.Clone(d.start)
	for _, c := range d.changes[:flushed] {
		b.writeAt(c.data, c.off)
	}
	keep := []float64{0, 0.1, 0.5, 0.9, 1}[r.IntN(5)]
	var kept []change
	for _, c := range d.changes[flushed:point] {
		if r.Float64() < keep {
			kept = append(kept, c)
		}
	}
	l := loss{point: point, pending: point - flushed, lost: point - flushed - len(kept)}
	for i, c := range kept {
		if sectors := len(c.data) / sectorSize; i == len(kept)-1 && sectors > 1 && r.IntN(2) == 0 {
			c.data, l.torn = c.data[:sectorSize*(1+r.IntN(sectors-1))], true
		}
		b.writeAt(c.data, c.off)
	}
	return b, l
}

// serve mounts a FUSE file system with one file, the disk, and returns the path of the file.
func (d *disk) serve(dir string) (path string, stop func() error, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", nil, err
	}
	const name = "disk"
	root := &fs.Inode{}
	server, err := fs.Mount(dir, root, &fs.Options{
		MountOptions: fuse.MountOptions{DirectMountStrict: true, FsName: "cnibox-power", Name: "power"},
		OnAdd: func(ctx context.Context) {
			root.AddChild(name, root.NewPersistentInode(ctx, &diskFile{d: d}, fs.StableAttr{Mode: unix.S_IFREG}), false)
		},
	})
	if err != nil {
		return "", nil, fmt.Errorf("mount the recorded disk: %w", err)
	}
	return filepath.Join(dir, name), server.Unmount, nil
}

// A diskFile is the file of a disk. It bypasses the page cache, so each write arrives when the loop
// device makes it.
type diskFile struct {
	fs.Inode
	d *disk
}

var (
	_ fs.NodeOpener    = (*diskFile)(nil)
	_ fs.NodeGetattrer = (*diskFile)(nil)
	_ fs.NodeSetattrer = (*diskFile)(nil)
	_ fs.NodeReader    = (*diskFile)(nil)
	_ fs.NodeWriter    = (*diskFile)(nil)
	_ fs.NodeFsyncer   = (*diskFile)(nil)
)

// Open implements [fs.NodeOpener].
func (f *diskFile) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, 0
}

// Getattr implements [fs.NodeGetattrer].
func (f *diskFile) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode, out.Size, out.Blocks = unix.S_IFREG|0o600, uint64(f.d.size), uint64(f.d.size/sectorSize)
	return 0
}

// Setattr implements [fs.NodeSetattrer]: times are not stored.
func (f *diskFile) Setattr(ctx context.Context, h fs.FileHandle, _ *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	return f.Getattr(ctx, h, out)
}

// Read implements [fs.NodeReader].
func (f *diskFile) Read(_ context.Context, _ fs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	dest = dest[:max(0, min(int64(len(dest)), f.d.size-off))]
	f.d.now.readAt(dest, off)
	return fuse.ReadResultData(dest), 0
}

// Write implements [fs.NodeWriter].
func (f *diskFile) Write(_ context.Context, _ fs.FileHandle, data []byte, off int64) (uint32, syscall.Errno) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	c := change{off, append([]byte{}, data...)}
	f.d.changes = append(f.d.changes, c)
	f.d.now.writeAt(c.data, c.off)
	return uint32(len(data)), 0
}

// Fsync implements [fs.NodeFsyncer], which is a flush of the loop device.
func (f *diskFile) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.d.changes = append(f.d.changes, change{})
	return 0
}
