package script

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/test/document"
)

var update = flag.Bool("update", false, "write the outputs of commands into the pages that have them")

// pages is the directory of the documents; the scripts have working directories of their own.
var pages, _ = filepath.Abs("../..")

// changing matches what differs from run to run in the output of a command: MAC and link-local addresses, the
// prefix of the default network, names of veth links, ports of clients, states of neighbours,
// handles of rules, times, identifiers that are made of the namespace, and the width of columns.
var changing = regexp.MustCompile(`(?m)\b([0-9a-f]{2}:){5}[0-9a-f]{2}\b|\bf[de][0-9a-f]{2}(:[0-9a-f]{0,4}){2,7}|\bveth[0-9a-f]+|\bcnitool-[0-9a-f]+|` +
	`:[3-6][0-9]{4}\b|\b(delay|reachable|stale|probe)$|\bhandle [0-9]+|[0-9-]+T[0-9:]+Z|\b[0-9]+m?s\b| +`)

// trailing matches the blanks at the end of a line, which no page has.
var trailing = regexp.MustCompile(`(?m)[ \t]+$`)

// page runs what a page has the reader type, in one shell, and compares what each step prints with the page.
func page(ts *testscript.TestScript, _ *hostAndContainer, args []string) error {
	if len(args) != 1 {
		return mistake("usage: page FILE")
	}
	file := filepath.Join(pages, args[0])
	steps, err := document.Steps(file)
	if err != nil {
		return mistake(err.Error())
	}
	work := ts.MkAbs(".")
	here := strings.NewReplacer("/etc/cni/net.d", work+"/net.d", "/opt/cni/bin", work+"/bin")
	there := strings.NewReplacer(work+"/net.d", "/etc/cni/net.d", work+"/bin", "/opt/cni/bin")
	const end = "---- end of a step ----"
	script := "exec 2>&1\ntrap 'kill $(jobs -p) 2>/dev/null' EXIT\n"
	for _, s := range steps {
		script += here.Replace(s.Commands) + "echo '" + end + "'\n"
	}
	err = ts.Exec("sh", "-c", script)
	outputs := strings.Split(trailing.ReplaceAllString(there.Replace(ts.ReadFile("stdout")), ""), end+"\n")
	if err != nil || len(outputs) != len(steps)+1 {
		return fmt.Errorf("%d of %d steps: %w", len(outputs)-1, len(steps), err)
	}
	outputs = outputs[:len(steps)]
	differ := ""
	for i, s := range steps {
		if changing.ReplaceAllString(s.Output, "#") == changing.ReplaceAllString(outputs[i], "#") {
			outputs[i] = s.Output
			continue
		}
		differ += "# " + s.Commands + kerneltest.Diff(s.Output, outputs[i]) + "\n"
		if !s.Console {
			return fmt.Errorf("a block of sh prints something:\n%s", differ)
		}
	}
	if differ == "" {
		return nil
	}
	if !*update {
		return fmt.Errorf("the page has other outputs; -update writes these:\n%s", differ)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(document.Rewrite(string(text), outputs)), 0o644)
}
