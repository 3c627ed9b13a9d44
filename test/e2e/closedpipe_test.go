package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cnibox/cnibox/test/product"
)

// The help of every verb and all verbs that only print end without an error message if stdout is a
// pipe without a reader.
func TestClosedPipe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	product.Install(t, bin)
	for file, text := range map[string]string{
		"net.d/mynet.conflist":         `{"cniVersion":"1.1.0","name":"mynet","plugins":[{"type":"loopback","unknown":1}]}`,
		"results/mynet-blue1-eth0":     `{"kind":"cniCacheV1","containerId":"blue1","config":"eyJjbmlWZXJzaW9uIjoiMS4xLjAifQ==","ifName":"eth0","networkName":"mynet","result":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/x"}],"ips":[{"address":"192.0.2.5/24","interface":0}]}}`,
		"results/mynet-incomplete-eth": `{`,
	} {
		file = filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	start := func(stdout *os.File, line string) (*os.ProcessState, string) {
		t.Helper()
		words := strings.Fields(line)
		var stderr bytes.Buffer
		cmd := exec.Command(filepath.Join(bin, words[0]), words[1:]...)
		cmd.Dir, cmd.Stderr, cmd.Stdout = dir, &stderr, stdout
		cmd.Env = []string{"NETCONFPATH=" + filepath.Join(dir, "net.d"), "CNIBOX_STATE=" + dir}
		if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return cmd.ProcessState, stderr.String()
	}
	lines := []string{
		"cnibox", "cnibox help bridge", "cnibox version", "cnibox verify " + bin, "bridge help",
		"cni-exec", "cni-exec help add", "cni-exec version", "cni-exec version mynet", "cni-exec ls", "cni-exec ls --networks", "cni-exec ls -o json", "cni-exec show mynet", "cni-exec show blue1",
		"cni-exec show mynet -o json", "cni-exec show 192.0.2.5", "cni-exec lint", "cni-exec lint -o json", "cni-exec tree", "cni-exec tree --dot", "cni-exec add x -o json", "cni-exec nosuch -o json",
		"cni-exec complete del ",
	}
	for _, verb := range verbsOfHelp(t, bin) {
		lines = append(lines, "cni-exec "+verb+" --help")
	}
	printing := 0
	for _, line := range lines {
		out, err := os.Create(filepath.Join(t.TempDir(), "out"))
		if err != nil {
			t.Fatal(err)
		}
		_, want := start(out, line)
		info, err := out.Stat()
		if err != nil {
			t.Fatal(err)
		}
		out.Close()
		reader, pipe, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		reader.Close()
		state, stderr := start(pipe, line)
		pipe.Close()
		prints := info.Size() > 0
		if prints {
			printing++
		}
		ended := state.Sys().(syscall.WaitStatus)
		switch {
		case !strings.HasPrefix(want, stderr):
			t.Errorf("%s: stderr is %q, and %q where it is read", line, stderr, want)
		case prints && !(ended.Signaled() && ended.Signal() == syscall.SIGPIPE) && state.ExitCode() > 2:
			t.Errorf("%s: %v", line, state)
		}
	}
	if printing < len(lines) {
		t.Errorf("%d of %d lines print something", printing, len(lines))
	}
}

// verbsOfHelp returns the verbs that the overview of cni-exec lists.
func verbsOfHelp(t *testing.T, bin string) (list []string) {
	t.Helper()
	out, err := exec.Command(filepath.Join(bin, "cni-exec"), "complete", "").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		verb, _, _ := strings.Cut(line, "\t")
		list = append(list, verb)
	}
	return list
}
