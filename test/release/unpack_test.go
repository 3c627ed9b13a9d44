package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/blakesmith/ar"
	"github.com/klauspost/compress/zstd"
	rpmutils "github.com/sassoftware/go-rpmutils"
	"github.com/ulikunitz/xz"
)

// unpacked is the content of a package, as a package manager reads it.
type unpacked struct {
	about   string            // name and relations, without what changes with each release
	scripts map[string]string // by the format's name of the script
	files   []entry
}

type entry struct {
	mode         fs.FileMode // as in an inode, with its type
	owner, group string
	name         string // absolute
	target       string // of a link
	data         []byte
}

// unpack makes a package and parses it.
func unpack(t *testing.T, r *release, f format, c common) (u unpacked) {
	t.Helper()
	must(t, os.RemoveAll(r.out), os.MkdirAll(r.out, 0o755), r.pack(f, arches[0], r.host, c))
	list, err := os.ReadDir(r.out)
	if err != nil || len(list) != 1 || !strings.HasSuffix(list[0].Name(), f.end) {
		t.Fatalf("%v, %v; want one package", list, err)
	}
	data, err := os.ReadFile(filepath.Join(r.out, list[0].Name()))
	must(t, err)
	read := map[string]func(*testing.T, []byte) unpacked{"deb": readDeb, "rpm": readRPM, "apk": readApk, "archlinux": readArch, "ipk": readIpk}[f.name]
	u = read(t, data)
	slices.SortFunc(u.files, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return u
}

func (u unpacked) String() string {
	var b strings.Builder
	b.WriteString("-- about --\n" + u.about + "-- files --\n")
	for _, e := range u.files {
		fmt.Fprintf(&b, "%s %s %s %s", e.mode, e.owner, e.group, e.name)
		if e.target != "" {
			b.WriteString(" -> " + e.target)
		}
		b.WriteByte('\n')
	}
	for _, name := range slices.Sorted(maps.Keys(u.scripts)) {
		fmt.Fprintf(&b, "-- %s --\n%s\n", name, strings.TrimRight(u.scripts[name], "\n"))
	}
	return b.String()
}

// changing matches the metadata that changes with each release or build.
var changing = regexp.MustCompile(`(?m)^(Version|Installed-Size|pkgver|builddate|size|datahash|packager|Maintainer|Date)( =|:).*\n`)

// readDeb parses an ar archive of control and data.
func readDeb(t *testing.T, data []byte) (u unpacked) {
	members := map[string][]byte{}
	for r := ar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		members[strings.TrimSuffix(h.Name, "/")] = readAll(t, r)
	}
	if got := string(members["debian-binary"]); got != "2.0\n" {
		t.Errorf("debian-binary is %q", got)
	}
	z, err := xz.NewReader(bytes.NewReader(members["data.tar.xz"]))
	must(t, err)
	return debian(t, gunzip(t, members["control.tar.gz"]), z)
}

// readIpk parses an ipk, which is a deb with tar instead of ar.
func readIpk(t *testing.T, data []byte) unpacked {
	members := map[string][]byte{}
	for _, e := range readTar(t, gunzip(t, data)) {
		members[e.name] = e.data
	}
	if got := string(members["/debian-binary"]); got != "2.0\n" {
		t.Errorf("debian-binary is %q", got)
	}
	return debian(t, gunzip(t, members["/control.tar.gz"]), gunzip(t, members["/data.tar.gz"]))
}

func debian(t *testing.T, control, data io.Reader) unpacked {
	u := unpacked{files: readTar(t, data), scripts: map[string]string{}}
	for _, e := range readTar(t, control) {
		switch name := strings.TrimPrefix(e.name, "/"); name {
		case "control":
			u.about = changing.ReplaceAllString(string(e.data), "")
		case "md5sums", "conffiles", "":
		default:
			u.scripts[name] = string(e.data)
		}
	}
	return u
}

// readApk parses gzip streams of control and data, which together are one tar archive.
func readApk(t *testing.T, data []byte) unpacked { return splitMetadata(readTar(t, gunzip(t, data))) }

func readArch(t *testing.T, data []byte) unpacked {
	z, err := zstd.NewReader(bytes.NewReader(data))
	must(t, err)
	defer z.Close()
	return splitMetadata(readTar(t, z))
}

// splitMetadata separates metadata, the files whose names begin with a dot, from the other files.
func splitMetadata(list []entry) unpacked {
	u := unpacked{scripts: map[string]string{}}
	for _, e := range list {
		switch name := strings.TrimPrefix(e.name, "/"); {
		case name == ".PKGINFO":
			u.about = changing.ReplaceAllString(string(e.data), "")
		case name == ".MTREE":
		case strings.HasPrefix(name, "."):
			u.scripts[name] = string(e.data)
		default:
			u.files = append(u.files, e)
		}
	}
	return u
}

func readRPM(t *testing.T, data []byte) unpacked {
	u := unpacked{scripts: map[string]string{}}
	rpm, err := rpmutils.ReadRpm(bytes.NewReader(data))
	must(t, err)
	for _, tag := range []struct {
		name string
		tag  int
	}{
		{"name", rpmutils.NAME}, {"arch", rpmutils.ARCH}, {"os", rpmutils.OS}, {"license", rpmutils.LICENSE}, {"url", rpmutils.URL}, {"summary", rpmutils.SUMMARY},
		{"description", rpmutils.DESCRIPTION}, {"provides", rpmutils.PROVIDENAME}, {"version of them", rpmutils.PROVIDEVERSION}, {"obsoletes", rpmutils.OBSOLETENAME},
		{"conflicts", rpmutils.CONFLICTNAME}, {"requires", rpmutils.REQUIRENAME}, {"compressor", rpmutils.PAYLOADCOMPRESSOR},
	} {
		if values, err := rpm.Header.GetStrings(tag.tag); err == nil {
			u.about += fmt.Sprintf("%s: %s\n", tag.name, strings.Join(values, ", "))
		}
	}
	for name, tag := range map[string]int{"pre": rpmutils.PREIN, "post": rpmutils.POSTIN, "preun": rpmutils.PREUN, "postun": rpmutils.POSTUN} {
		if text, err := rpm.Header.GetString(tag); err == nil {
			u.scripts[name] = text
		}
	}
	payload, err := rpm.PayloadReaderExtended()
	must(t, err)
	for {
		info, err := payload.Next()
		if errors.Is(err, io.EOF) {
			return u
		}
		must(t, err)
		e := entry{mode: inode(info.Mode()), owner: info.UserName(), group: info.GroupName(), name: info.Name(), target: info.Linkname()}
		if e.mode.IsRegular() {
			e.data = readAll(t, payload)
		}
		u.files = append(u.files, e)
	}
}

// inode converts a mode of stat(2).
func inode(mode int) fs.FileMode {
	h := tar.Header{Mode: int64(mode & 0o7777), Typeflag: map[int]byte{0o120000: tar.TypeSymlink, 0o040000: tar.TypeDir, 0o100000: tar.TypeReg}[mode&0o170000]}
	return h.FileInfo().Mode()
}

// readTar parses an archive; names become absolute.
func readTar(t *testing.T, r io.Reader) (list []entry) {
	t.Helper()
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return list
		}
		must(t, err)
		e := entry{mode: h.FileInfo().Mode(), owner: owner(h.Uname, h.Uid), group: owner(h.Gname, h.Gid), target: h.Linkname, data: readAll(t, archive)}
		e.name = path.Join("/", h.Name)
		list = append(list, e)
	}
}

func owner(name string, id int) string {
	switch {
	case name != "":
		return name
	case id == 0:
		return "root"
	}
	return fmt.Sprint(id)
}

func gunzip(t *testing.T, data []byte) io.Reader {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(data))
	must(t, err)
	return z
}

func readAll(t *testing.T, r io.Reader) []byte {
	t.Helper()
	data, err := io.ReadAll(r)
	must(t, err)
	return data
}

// difference returns the lines that only one of two texts has.
func difference(want, got string) string {
	var b strings.Builder
	only := func(mark, a, other string) {
		has := map[string]bool{}
		for line := range strings.Lines(other) {
			has[line] = true
		}
		for line := range strings.Lines(a) {
			if !has[line] {
				b.WriteString(mark + line)
			}
		}
	}
	only("-", want, got)
	only("+", got, want)
	if b.Len() == 0 {
		return "another order of lines"
	}
	return b.String()
}
