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
