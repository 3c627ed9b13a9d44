package main

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// archive writes cnibox-VERSION-linux-ARCH.tar.gz, with one directory of that name. It has no names of
// plugins: these have the path of the binary, and `cnibox install` creates them.
func (r *release) archive(a arch, binary string, c common) (err error) {
	data, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("cnibox-%s-linux-%s", r.version, a.name)
	files := slices.Concat(
		[]file{{name: "bin/cnibox", mode: 0o755, data: data}}, []file{{name: "bin/cni-exec", target: "cnibox"}},
		inDir("share/man/man8", c.man), inDir("share", c.completions),
		inDir("systemd", c.units), inDir("openrc", c.openrc), inDir("procd", c.procd),
		inDir("examples", c.examples), c.docs, inDir("licences", c.licences))
	f, err := r.create(name + ".tar.gz")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	z, err := gzip.NewWriterLevel(f, gzip.BestCompression)
	if err != nil {
		return err
	}
	return errors.Join(writeTar(z, inDir(name, files), r.time), z.Close())
}

// writeTar writes files sorted by name, owned by root, after their directories.
func writeTar(w io.Writer, files []file, at time.Time) error {
	t := tar.NewWriter(w)
	files = slices.SortedFunc(slices.Values(files), func(a, b file) int { return cmp.Compare(a.name, b.name) })
	made := map[string]bool{".": true, "/": true}
	for _, f := range files {
		for i := range f.name {
			if dir := f.name[:i]; f.name[i] == '/' && dir != "" && !made[path.Clean(dir)] {
				made[path.Clean(dir)] = true
				h := &tar.Header{Typeflag: tar.TypeDir, Name: strings.TrimPrefix(dir, "/") + "/", Mode: 0o755, ModTime: at, Format: tar.FormatPAX}
				if err := t.WriteHeader(h); err != nil {
					return err
				}
			}
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(f.name, "/"), Mode: int64(f.mode), Size: int64(len(f.data)), ModTime: at, Format: tar.FormatPAX}
		if f.target != "" {
			h.Typeflag, h.Linkname, h.Mode, h.Size = tar.TypeSymlink, f.target, 0o777, 0
		}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(f.data); err != nil {
			return err
		}
	}
	return t.Close()
}
