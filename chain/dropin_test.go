package chain

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The number of values is limited, since hundreds of thousands take seconds to parse.
func TestReadFileOfManyValues(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.conflist")
	for n, want := range map[int]string{maxValues: "", maxValues + 1: "too many values"} {
		doc := "[1" + strings.Repeat(",1", n) + "]"
		if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := ReadFile(file)
		if want == "" && (err != nil || string(got) != doc) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%d commas: %v", n, err)
		}
	}
}

// A Dir reads its files once, and each list that it loads has its own plugins: those of the drop-in
// directory are added once.
func TestDirReadsFilesOnce(t *testing.T) {
	dir := t.TempDir()
	write := func(name, doc string) {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []string{"a", "b"} {
		write(n+".conflist", `{"cniVersion":"1.1.0","name":"`+n+`","plugins":[{"type":"bridge"}]}`)
		write(n+"/1.conf", `{"type":"tuning"}`)
	}
	d := NewDir(dir)
	for range 2 {
		for _, n := range []string{"a", "b"} {
			l, err := d.Load(n)
			if err != nil || l.Name != n || len(l.Plugins) != 2 {
				t.Fatalf("%s: %+v, %v", n, l, err)
			}
			if err := os.Remove(filepath.Join(dir, n+".conflist")); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
		}
	}
	if _, err := NewDir(dir).Load("a"); err == nil {
		t.Error("a removed file is found by a new Dir")
	}
}
