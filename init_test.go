package main

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A plugin is a new process for each call, so no package runs code at start: the linker lays out
// the tables. It lists the start code of packages under the name ..inittask, and with
// GODEBUG=inittrace=1 the runtime prints a line for each package with such code.
func TestNothingRunsAtStart(t *testing.T) {
	for _, tags := range []string{"", "no_bridge,no_dhcp,no_cni_exec"} {
		program := filepath.Join(t.TempDir(), "cnibox")
		if out, err := exec.Command("go", "build", "-tags", tags, "-o", program, ".").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		symbols, err := exec.Command("go", "tool", "nm", program).Output()
		if err != nil {
			t.Fatal(err)
		}
		ours := regexp.MustCompile(`(?m) (github\.com/cnibox/[^ ]*)\.\.inittask$`).FindAllStringSubmatch(string(symbols), -1)
		for _, of := range ours {
			t.Errorf("tags %q: package %s runs code at start: go tool objdump -s '^%[2]s\\.init' has it", tags, of[1])
		}
		cmd := exec.Command(program, "help")
		cmd.Env = append(cmd.Environ(), "GODEBUG=inittrace=1")
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "init golang.org/x/sys/unix @") {
			t.Fatalf("no trace: %v\n%s", err, out)
		}
		for line := range strings.Lines(string(out)) {
			if strings.HasPrefix(line, "init github.com/cnibox/") {
				t.Errorf("tags %q: %s", tags, line)
			}
		}
	}
}
