package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/nfttest"
	"github.com/cnibox/cnibox/spec"
)

// If a plugin cannot write its result to stdout, its ADD leaves nothing, and the next ADD succeeds.
func TestKernelPluginUnwritableStdout(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	w := newWorld(t)
	c := w.Container("c1")
	call := func(stdout *os.File, verb, plugin, conf string) (exit int, stderr string) {
		t.Helper()
		words := strings.Fields(plugin)
		cmd := exec.Command(w.Path("bin/"+words[0]), words[1:]...)
		cmd.Stdout = stdout
		exit, _, stderr, err := w.Process(cmd, w.Expand(conf), c.Env(spec.Verb(verb))...)
		w.NoError(err)
		return exit, stderr
	}
	open := func(path string, flag int) *os.File {
		t.Helper()
		f, err := os.OpenFile(path, flag, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	good := open(os.DevNull, os.O_WRONLY)
	must := func(t *testing.T, verb, plugin, conf string) {
		t.Helper()
		if exit, stderr := call(good, verb, plugin, conf); exit != 0 {
			t.Fatalf("%s %s: exit %d: %s", verb, plugin, exit, stderr)
		}
	}
	leases := func() (list []string) {
		list, err := filepath.Glob(w.Path("leases/demo/10.*"))
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	state := func() string {
		return strings.Join(leases(), " ") + kerneltest.Snapshot(t, w.NS) + kerneltest.Snapshot(t, c.NS) + nfttest.Ruleset(t, w.NS)
	}
	const (
		ipam = `"ipam":{"type":"host-local","subnet":"10.1.0.0/24","dataDir":"$DIR/leases"}`
		prev = `"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/x"}],"ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1","interface":0}]}`
	)
	bridge := `{"cniVersion":"1.1.0","name":"demo","type":"bridge","bridge":"br0","isGateway":true,"ipMasq":true,` + ipam + `}`
	chained := map[string]string{
		"tuning": `{"cniVersion":"1.1.0","name":"demo","type":"tuning","dataDir":"$DIR/tuning","mac":"02:00:00:00:00:aa","mtu":1400,` + prev + `}`,
		"portmap": `{"cniVersion":"1.1.0","name":"demo","type":"portmap","dataDir":"$DIR/ports",
			"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]},` + prev + `}`,
	}
	for name, stdout := range map[string]func() *os.File{
		"full":      func() *os.File { return open("/dev/full", os.O_WRONLY) },
		"read-only": func() *os.File { return open(os.DevNull, os.O_RDONLY) },
		"no reader": func() *os.File {
			reader, pipe, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			reader.Close()
			t.Cleanup(func() { pipe.Close() })
			return pipe
		},
	} {
		refused := func(t *testing.T, plugin, conf string) {
			t.Helper()
			must(t, "ADD", plugin, conf) // makes what DEL leaves, such as a bridge and tables
			must(t, "DEL", plugin, conf)
			before := state()
			exit, stderr := call(stdout(), "ADD", plugin, conf)
			if exit != 1 || !strings.Contains(stderr, "write the answer") {
				t.Errorf("%s: exit %d, want 1: %s", plugin, exit, stderr)
			}
			if after := state(); after != before {
				t.Errorf("%s left:\n%s", plugin, kerneltest.Diff(before, after))
			}
		}
		t.Run(name, func(t *testing.T) {
			refused(t, "host-local", strings.Replace(bridge, `"bridge"`, `"host-local"`, 1))
			refused(t, "bridge", bridge)
			refused(t, "cnibox bridge", bridge)
			must(t, "ADD", "bridge", bridge)
			for plugin, conf := range chained {
				refused(t, plugin, strings.Replace(conf, `"/x"`, `"`+c.Path+`"`, 1))
			}
			must(t, "DEL", "bridge", bridge)
		})
	}
}
