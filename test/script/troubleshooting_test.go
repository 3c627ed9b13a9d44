package script

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// docs/troubleshooting.md has the output of the commands in its script, with the directories of an
// installation.
func TestTroubleshooting(t *testing.T) {
	script, err := txtar.ParseFile(filepath.Join("testdata", "troubleshooting.txt"))
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "troubleshooting.md"))
	if err != nil {
		t.Fatal(err)
	}
	dirs := strings.NewReplacer("$WORK/net.d", "/etc/cni/net.d", "$WORK/nowhere", "/opt/cni/bin")
	outputs := 0
	for _, f := range script.Files {
		if !strings.HasSuffix(f.Name, ".out") {
			continue
		}
		outputs++
		if !strings.Contains(string(page), dirs.Replace(string(f.Data))) {
			t.Errorf("the page lacks %s:\n%s", f.Name, dirs.Replace(string(f.Data)))
		}
	}
	if outputs < 6 {
		t.Errorf("%d outputs: there is nothing to compare", outputs)
	}
}
