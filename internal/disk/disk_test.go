package disk_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/disk"
	"github.com/cnibox/cnibox/internal/fault"
)

// Read does not wait for a pipe, follows links unless asked otherwise, and limits the size.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(dir+"/file", []byte("12345"), 0o600), os.Symlink("file", dir+"/link"), unix.Mkfifo(dir+"/pipe", 0o600),
		os.WriteFile(dir+"/large", []byte(strings.Repeat("l", 20000)), 0o600)); err != nil {
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
		"pipe":      {"pipe", 0, 10, "", "regular file"},
		"directory": {"", 0, 10, "", "regular file"},
		"missing":   {"x", 0, 10, "", "no such"},
		"large":     {"large", 0, 20000, strings.Repeat("l", 20000), ""},
	}
	for name, tt := range tests {
		got, err := disk.Read(filepath.Join(dir, tt.file), tt.flags, tt.limit)
		if string(got) != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// Files in /proc have content although their size is 0.
func TestReadProc(t *testing.T) {
	want, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	got, err := disk.Read("/proc/self/status", 0, 1<<20)
	name, _, _ := strings.Cut(string(want), "\n")
	if err != nil || !strings.HasPrefix(string(got), name) {
		t.Errorf("%q, %v", got, err)
	}
}

// content returns the names in a directory with the text of files.
func content(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		text := e.Type().String()
		if e.Type().IsRegular() {
			b, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			text = string(b)
		}
		all = append(all, e.Name()+"="+text)
	}
	return strings.Join(all, " ")
}

func TestReplace(t *testing.T) {
	tests := map[string]struct {
		before func(dir string) error
		how    disk.How
		want   string // content of the directory afterwards
		err    error
	}{
		"no file":                    {nil, 0, "file=new", nil},
		"no file, new":               {nil, disk.New, "file=new", nil},
		"no file, durable":           {nil, disk.Durable | disk.New, "file=new", nil},
		"a file":                     {func(dir string) error { return os.WriteFile(dir+"/file", []byte("older"), 0o644) }, 0, "file=new", nil},
		"a file, durable":            {func(dir string) error { return os.WriteFile(dir+"/file", []byte("older"), 0o644) }, disk.Durable, "file=new", nil},
		"a file, new":                {func(dir string) error { return os.WriteFile(dir+"/file", []byte("old"), 0o600) }, disk.New, "file=old", os.ErrExist},
		"a link":                     {func(dir string) error { return link(dir, "file") }, 0, "file=new other=kept", nil},
		"a link, new":                {func(dir string) error { return link(dir, "file") }, disk.New, "file=L--------- other=kept", os.ErrExist},
		"a dangling link, new":       {func(dir string) error { return os.Symlink("none", dir+"/file") }, disk.New, "file=L---------", os.ErrExist},
		"a directory":                {func(dir string) error { return os.Mkdir(dir+"/file", 0o700) }, 0, "file=d---------", os.ErrExist},
		"left by a killed writer":    {func(dir string) error { return os.WriteFile(dir+"/temp", []byte("ne"), 0o600) }, 0, "file=new", nil},
		"temp is a link":             {func(dir string) error { return link(dir, "temp") }, 0, "file=new other=kept", nil},
		"temp is a directory in use": {func(dir string) error { return os.MkdirAll(dir+"/temp/x", 0o700) }, 0, "temp=d---------", unix.ENOTEMPTY},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if tt.before != nil {
				if err := tt.before(dir); err != nil {
					t.Fatal(err)
				}
			}
			err := disk.Replace(dir+"/file", dir+"/temp", []byte("new"), tt.how)
			if !errors.Is(err, tt.err) {
				t.Errorf("got %v, want %v", err, tt.err)
			}
			if got := content(t, dir); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if st, serr := os.Stat(dir + "/file"); err == nil && (serr != nil || st.Mode() != 0o600) {
				t.Errorf("mode %v, %v", st, serr)
			}
		})
	}
}

// link makes a symbolic link to a file that must keep its content.
func link(dir, name string) error {
	return errors.Join(os.WriteFile(dir+"/other", []byte("kept"), 0o600), os.Symlink("other", filepath.Join(dir, name)))
}

func TestReplaceDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := disk.Replace(dir+"/a/b/file", dir+"/a/b/temp", []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(dir + "/a"); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", st, err)
	}
	err := disk.Replace(dir+"/a/b/file/x", dir+"/a/b/file/temp", nil, 0)
	if !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("below a file: %v", err)
	}
}

// After a fault nothing is changed, not even the directory. Removing a missing file cannot fail.
func TestFaultChangesNothing(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/old", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	defer func() { fault.Hook = nil }()
	fault.Hook = func(what string) error { return fmt.Errorf("no %s", what) }
	for want, err := range map[string]error{
		"no write file": disk.Replace(dir+"/a/file", dir+"/a/temp", []byte("x"), 0),
		"no remove old": disk.Remove(dir + "/old"),
		"no rename old": disk.Rename(dir+"/old", dir+"/new"),
	} {
		if err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if err := disk.Remove(dir + "/none"); err != nil {
		t.Error(err)
	}
	if got := content(t, dir); got != "old=x" {
		t.Errorf("in the directory: %q", got)
	}
}

func TestRemove(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(link(dir, "link"), os.Mkdir(dir+"/empty", 0o700), os.MkdirAll(dir+"/full/x", 0o700)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]error{
		"link": nil, "empty": nil, "full": unix.ENOTEMPTY, "none": nil, "none/x": nil, "other/x": nil,
	} {
		if err := disk.Remove(filepath.Join(dir, name)); !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", name, err, want)
		}
	}
	if got, want := content(t, dir), "full=d--------- other=kept"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestRename(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(dir+"/from", []byte("x"), 0o600), os.WriteFile(dir+"/to", []byte("old"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := disk.Rename(dir+"/from", dir+"/to"); err != nil {
		t.Error(err)
	}
	if err := disk.Rename(dir+"/from", dir+"/to"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	if got := content(t, dir); got != "to=x" {
		t.Errorf("got %s", got)
	}
}

// A concurrent reader gets either content as a whole.
func TestReplaceIsAtomic(t *testing.T) {
	dir := t.TempDir()
	texts := []string{strings.Repeat("a", 5000), strings.Repeat("b", 9000)}
	write := func(i int) {
		if err := disk.Replace(dir+"/file", dir+"/temp", []byte(texts[i%2]), 0); err != nil {
			t.Error(err)
		}
	}
	write(0)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 300 {
			write(i)
		}
	}()
	for {
		b, err := disk.Read(dir+"/file", 0, 10000)
		if err != nil || string(b) != texts[0] && string(b) != texts[1] {
			t.Fatalf("%d bytes, %v", len(b), err)
		}
		select {
		case <-done:
			return
		default:
		}
	}
}

// One of several writers of a new file succeeds, and its content is kept.
func TestReplaceNewOnce(t *testing.T) {
	dir := t.TempDir()
	errs := make([]error, 16)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			errs[i] = disk.Replace(dir+"/file", fmt.Sprintf("%s/temp%d", dir, i), fmt.Append(nil, i), disk.New)
		})
	}
	all.Wait()
	won := -1
	for i, err := range errs {
		switch {
		case err == nil && won < 0:
			won = i
		case !errors.Is(err, os.ErrExist):
			t.Errorf("writer %d: %v", i, err)
		}
	}
	if got, want := content(t, dir), fmt.Sprintf("file=%d", won); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
