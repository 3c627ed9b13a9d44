package e2e

import (
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// modules returns modules and their versions as go list prints them.
func modules(t *testing.T, args ...string) map[string]string {
	t.Helper()
	out, err := exec.Command("go", append([]string{"list"}, args...)...).Output()
	if err != nil {
		t.Fatalf("go list %q: %v", args, err)
	}
	list := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if path, version, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			list[path] = version
		}
	}
	return list
}

// The product is tested with the versions of modules that it links: where both modules require one,
// Go takes the higher version for the test module.
func TestModuleVersions(t *testing.T) {
	linked := modules(t, "-C", "../..", "-deps", "-f", "{{with .Module}}{{.Path}}{{with .Version}} {{.}}{{end}}{{end}}", ".")
	if len(linked) == 0 {
		t.Fatal("the product links no module: there is nothing to test")
	}
	here := modules(t, append([]string{"-m", "-f", "{{.Path}} {{.Version}}"}, slices.Collect(maps.Keys(linked))...)...)
	for path, version := range linked {
		if here[path] != version {
			t.Errorf("%s: the product links %s, its tests %s", path, version, here[path])
		}
	}
}
