package main

import (
	"go/format"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The table is that of the list, without a file of a name that has left it.
func TestGenerated(t *testing.T) {
	list, err := os.ReadFile("../../../testdata/applets.golden")
	if err != nil {
		t.Fatal(err)
	}
	want := files(strings.Fields(string(list)))
	for name, text := range want {
		got, err := os.ReadFile("../" + name)
		if formatted, _ := format.Source([]byte(text)); err != nil || string(got) != text || string(formatted) != text {
			t.Errorf("%s: %v: it is not what `go generate ./applets/builtin` writes, or not as gofmt has it", name, err)
		}
	}
	found, err := filepath.Glob("../*.go")
	if err != nil {
		t.Fatal(err)
	}
	for i := range found {
		found[i] = filepath.Base(found[i])
	}
	if all := slices.Sorted(maps.Keys(want)); len(found) != len(all)+1 { // and builtin.go
		t.Errorf("there are %v, and %v are generated", found, all)
	}
}
