package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// An image is the content of an initramfs, by absolute path.
type image map[string]entry

// An entry is a file, directory, link or device. The zero mode is none of these.
type entry struct {
	mode     uint32 // including the S_IF bits
	from     string // file on this machine with the content; "": text
	text     string // content, or target of a link
	maj, min uint32 // of a device
}

// merged are the directories that are links into /usr, as in Debian. Each file must be in the image
// under one name, so that no directory replaces a link.
var merged = []string{"/bin", "/lib", "/lib64", "/sbin"}

// newImage makes an image with the links of [merged], empty directories, and /dev/console for the
// first process.
func newImage() image {
	im := image{"/dev/console": {mode: unix.S_IFCHR | 0o600, maj: 5, min: 1}}
	for _, dir := range merged {
		im[dir] = entry{mode: unix.S_IFLNK | 0o777, text: "usr" + dir}
		im.dir("/usr" + dir)
	}
	for _, dir := range []string{"/proc", "/sys", "/run", "/tmp", "/root", "/etc", "/var/lib"} {
		im.dir(dir)
	}
	im.link("/var/run", "/run")
	return im
}

func (im image) clone() image { return maps.Clone(im) }

// put adds an entry and the directories above it.
func (im image) put(name string, e entry) {
	name = path.Clean(name)
	for _, dir := range merged {
		if strings.HasPrefix(name, dir+"/") {
			name = "/usr" + name
			break
		}
	}
	im.dir(path.Dir(name))
	im[name] = e
}

// dir adds a directory and those above it, if they are missing.
func (im image) dir(name string) {
	for ; name != "/" && im[name].mode == 0; name = path.Dir(name) {
		im[name] = entry{mode: unix.S_IFDIR | 0o755}
	}
}

func (im image) text(name, content string, perm uint32) {
	im.put(name, entry{mode: unix.S_IFREG | perm, text: content})
}

func (im image) link(name, target string) {
	im.put(name, entry{mode: unix.S_IFLNK | 0o777, text: target})
}

// copy adds a file of this machine, which is read when the image is written.
func (im image) copy(name, from string, perm uint32) {
	im.put(name, entry{mode: unix.S_IFREG | perm, from: from})
}

// write writes the image as a cpio archive for the kernel. It is not compressed: on an emulated
// processor decompressing takes longer than reading.
func (im image) write(file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	err = im.archive(w)
	return errors.Join(err, w.Flush(), f.Close())
}

// archive writes the entries, directories before their contents, and the trailer. Format:
// Documentation/driver-api/early-userspace/buffer-format.rst, "newc".
func (im image) archive(w io.Writer) error {
	for i, name := range slices.Sorted(maps.Keys(im)) {
		if err := im[name].archive(w, i+1, strings.TrimPrefix(name, "/")); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return entry{}.archive(w, 0, "TRAILER!!!")
}

// archive writes one entry. Header and content are each padded to a multiple of four bytes.
func (e entry) archive(w io.Writer, inode int, name string) error {
	var content io.Reader = strings.NewReader(e.text)
	size := int64(len(e.text))
	if e.from != "" {
		f, err := os.Open(e.from)
		if err != nil {
			return err
		}
		defer f.Close()
		st, err := f.Stat()
		if err != nil {
			return err
		}
		content, size = io.LimitReader(f, st.Size()), st.Size()
	}
	header := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		inode, e.mode, 0, 0, 1, 0, size, 0, 0, e.maj, e.min, len(name)+1, 0, name)
	_, err := io.WriteString(w, header+padding(int64(len(header))))
	if err != nil {
		return err
	}
	if n, err := io.Copy(w, content); err != nil || n != size {
		return fmt.Errorf("%d bytes of %d written: %w", n, size, err)
	}
	_, err = io.WriteString(w, padding(size))
	return err
}

// padding returns the NULs that pad a length to a multiple of four bytes.
func padding(length int64) string { return "\x00\x00\x00"[:-length&3] }
