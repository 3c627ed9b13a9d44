package disk_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/internal/disk"
)

// What it says of files of all kinds is what package os says.
func TestInfoLikeOS(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("12345"), 0o640); err != nil {
		t.Fatal(err)
	}
	link, pipe := filepath.Join(dir, "link"), filepath.Join(dir, "pipe")
	if err := errors.Join(os.Symlink("file", link), unix.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, file, link, pipe, "/dev/null", "/proc/self/ns/net", filepath.Join(dir, "missing"), filepath.Join(file, "below")} {
		for name, ask := range map[string]struct {
			ours func(string) (disk.Info, error)
			os   func(string) (os.FileInfo, error)
		}{"stat": {disk.Stat, os.Stat}, "lstat": {disk.Lstat, os.Lstat}} {
			got, gotErr := ask.ours(path)
			want, wantErr := ask.os(path)
			if wantErr != nil {
				if gotErr == nil || gotErr.Error() != wantErr.Error() || errors.Is(gotErr, os.ErrNotExist) != errors.Is(wantErr, os.ErrNotExist) {
					t.Errorf("%s %s: %v, want %v", name, path, gotErr, wantErr)
				}
				continue
			}
			if gotErr != nil || got.IsDir() != want.IsDir() || got.IsRegular() != want.Mode().IsRegular() ||
				got.IsLink() != (want.Mode()&os.ModeSymlink != 0) || got.Size != want.Size() {
				t.Errorf("%s %s: %+v, %v, want %v", name, path, got, gotErr, want)
			}
		}
	}
	a, _ := disk.Stat(file)
	b, _ := disk.Stat(link)
	c, _ := disk.Lstat(link)
	if !a.Same(b) || a.Same(c) {
		t.Errorf("same: %t, %t", a.Same(b), a.Same(c))
	}
	if a.Age() < 0 || a.Age() > time.Minute {
		t.Errorf("the file is %s old", a.Age())
	}
	if disk.NotDir(dir) || !disk.NotDir(file) || disk.NotDir(dir+"/missing") {
		t.Error("NotDir")
	}
}

func TestMakeDir(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{
		dir: nil, dir + "/a/b/c": nil, dir + "/a//d/": nil, dir + "/a/./e/.": nil, "/": nil, ".": nil,
		dir + "/file": unix.ENOTDIR, dir + "/file/x": unix.ENOTDIR,
	} {
		err := disk.MakeDir(path, 0o700)
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
		if st, serr := os.Stat(path); want == nil && (serr != nil || !st.IsDir()) {
			t.Errorf("%s: %v, %v", path, st, serr)
		}
	}
	t.Chdir(dir)
	if err := disk.MakeDir("relative/x", 0o755); err != nil {
		t.Error(err)
	}
	if st, err := os.Stat(dir + "/relative/x"); err != nil || !st.IsDir() {
		t.Errorf("relative: %v, %v", st, err)
	}
	if st, err := os.Stat(dir + "/a/b"); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", st, err)
	}
}

// A pipe is not waited for, a link is followed or not, and nothing is read without end.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(dir+"/file", []byte("12345"), 0o600), os.Symlink("file", dir+"/link"), unix.Mkfifo(dir+"/pipe", 0o600)); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		file         string
		flags, limit int
		want, err    string
	}{
		"whole":     {"file", 0, 5, "12345", ""},
		"too large": {"file", 0, 4, "", "larger than 4 bytes"},
		"link":      {"link", 0, 10, "12345", ""},
		"no link":   {"link", unix.O_NOFOLLOW, 10, "", "too many levels"},
		"pipe":      {"pipe", 0, 10, "", "not a regular file"},
		"folder":    {"", 0, 10, "", "not a regular file"},
		"missing":   {"x", 0, 10, "", "no such file"},
	}
	for name, tt := range tests {
		got, err := disk.Read(filepath.Join(dir, tt.file), tt.flags, tt.limit)
		if string(got) != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestList(t *testing.T) {
	dir := t.TempDir()
	var want []string
	for i := range 2000 { // more than one buffer
		name := strings.Repeat("n", i%200+1) + time.Duration(i).String()
		want = append(want, name)
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(dir+"/folder", 0o700); err != nil {
		t.Fatal(err)
	}
	entries, err := disk.List(dir)
	var got []string
	for _, e := range entries {
		if e.Name == "folder" != (e.Type == unix.DT_DIR) && e.Type != unix.DT_UNKNOWN {
			t.Errorf("%s is of type %d", e.Name, e.Type)
		}
		got = append(got, e.Name)
	}
	slices.Sort(got)
	want = append(want, "folder")
	slices.Sort(want)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%d names, want %d: %v", len(got), len(want), err)
	}
	for path, want := range map[string]error{dir + "/none": os.ErrNotExist, filepath.Join(dir, want[1]): unix.ENOTDIR} {
		if entries, err := disk.List(path); !errors.Is(err, want) || len(entries) != 0 {
			t.Errorf("%s: %v, %v; want %v", path, entries, err, want)
		}
	}
}

func TestTemp(t *testing.T) {
	dir := t.TempDir()
	a, err := disk.Temp(dir, "new-")
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	st, err := a.Stat()
	if err != nil || st.Mode().Perm() != 0o600 || !strings.HasPrefix(filepath.Base(a.Name()), "new-") {
		t.Errorf("%s: %v, %v", a.Name(), st, err)
	}
	if err := disk.Rename(a.Name(), dir+"/name"); err != nil {
		t.Error(err)
	}
	if err := disk.Rename(a.Name(), dir+"/name"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("renamed twice: %v", err)
	}
	if _, err := disk.Temp(dir+"/missing", "x"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a folder: %v", err)
	}
}

func TestReal(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(dir+"/real", 0o700), os.Symlink("real", dir+"/link")); err != nil {
		t.Fatal(err)
	}
	if got, err := disk.Real(dir + "/./link/"); err != nil || got != dir+"/real" {
		t.Errorf("%s, %v", got, err)
	}
	if _, err := disk.Real(dir + "/missing"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	t.Chdir(dir)
	for path, want := range map[string]string{"a/../b": dir + "/b", "/x/./y": "/x/y", ".": dir} {
		if got, err := disk.Absolute(path); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", path, got, err, want)
		}
	}
}
