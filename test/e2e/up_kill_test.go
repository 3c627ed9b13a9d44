package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/kerneltest"
)

// upFile describes two namespaces, the first with two attachments; NAME is replaced.
const upFile = `{"namespaces": {
	"NAME-a": [{"network": "demo", "ips": ["10.1.0.5"], "ports": ["PORT:80"]}, {"network": "other"}],
	"NAME-b": [{"network": "demo"}]}}`

const upNet = `{"cniVersion":"1.1.0","name":"demo","plugins":[
	{"type":"bridge","bridge":"br0","isGateway":true,"ipMasq":true,"capabilities":{"ips":true},
	"ipam":{"type":"host-local","dataDir":"$DIR/leases","subnet":"10.1.0.0/24"}},
	{"type":"portmap","capabilities":{"portMappings":true},"dataDir":"$DIR/ports"}]}`

const upOther = `{"cniVersion":"1.1.0","name":"other","plugins":[{"type":"bridge","bridge":"br1",
	"ipam":{"type":"host-local","dataDir":"$DIR/leases","subnet":"10.2.0.0/24"}}]}`

// TestKernelUpInterrupted ends up, and then down, by each signal at each of their changes. The next
// up finishes the work, the one after it has nothing to do, and the next down restores the state
// from before.
func TestKernelUpInterrupted(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	for _, sig := range []unix.Signal{unix.SIGKILL, unix.SIGTERM, unix.SIGINT} {
		t.Run(unix.SignalName(sig), func(t *testing.T) {
			for lane := range killLanes {
				if sig == unix.SIGINT && (lane > 0 || !kerneltest.Full()) {
					break // handled like SIGTERM
				}
				t.Run(strconv.Itoa(lane), func(t *testing.T) {
					t.Parallel()
					interruptUp(t, sig, lane)
				})
			}
		})
	}
}

// SIGTERM at the only change of the first process of run --exec is not lost when that executes the
// second one, and nothing more is changed.
func TestKernelRunExecInterrupted(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	w := newWorld(t)
	w.write("net.d/demo.conflist", upNet)
	changes := w.Path("net.d/changes")
	a := w.run("", []string{killAt + "=1", fmt.Sprintf("%s=%d", killBy, unix.SIGTERM), listChanges + "=" + changes}, w.Path("bin/cni-exec"),
		"run", "--exec", "--net", "demo", "--conf-dir", w.Path("net.d"), "--cache-dir", w.Path("cni"), "--", "true")
	if exit := 128 + int(unix.SIGTERM); a.signal != unix.SIGTERM && a.exit != exit { // the same to a shell
		t.Errorf("ended by %v, exit code %d, want SIGTERM or %d: %s", a.signal, a.exit, exit, a.stderr)
	}
	if list, _ := os.ReadFile(changes); len(list) > 0 {
		t.Errorf("changes after it:\n%s", list)
	}
}

// interruptUp takes every killLanes-th change from that of its lane.
func interruptUp(t *testing.T, sig unix.Signal, lane int) {
	w := newWorld(t)
	name := fmt.Sprintf("interrupted-%d-%d-%d", os.Getpid(), sig, lane)
	w.write("net.d/demo.conflist", upNet)
	w.write("net.d/other.conflist", upOther)
	w.write("net.d/state.json.txt", strings.NewReplacer("NAME", name, "PORT", strconv.Itoa(8000+lane)).Replace(upFile))
	call := func(verb string, env ...string) answer {
		return w.run("", env, w.Path("bin/cni-exec"), verb, w.Path("net.d/state.json.txt"), "--conf-dir", w.Path("net.d"), "--cache-dir", w.Path("cni"))
	}
	t.Cleanup(func() { call("down") })
	w.must("up", call("up")) // makes what a host keeps
	w.must("down", call("down"))
	w.must("up", call("up", listChanges+"="+w.Path("net.d/changes")))
	list, err := os.ReadFile(w.Path("net.d/changes"))
	if err != nil {
		t.Fatal(err)
	}
	changes := strings.Count(string(list), "\n")
	w.must("down", call("down"))
	before := w.Snapshot()
	interrupted := 0
	for n := lane; ; n += every(killLanes) {
		env := []string{fmt.Sprintf("%s=%d", killAt, n+1), fmt.Sprintf("%s=%d", killBy, sig)}
		up := call("up", env...)
		what := fmt.Sprintf("up ended by %s at change %d", unix.SignalName(sig), n+1)
		w.must(what+", then up", call("up"))
		if out := w.must(what+", then up twice", call("up")); out != "" {
			t.Errorf("%s: the second up after it changes %q", what, out)
		}
		checked := w.must(what+", then check", w.run("", nil, w.Path("bin/cni-exec"), "ls", "--check", "-o", "json", "--cache-dir", w.Path("cni")))
		if strings.Count(checked, `"check": "ok"`) != 3 {
			t.Errorf("%s, then CHECK of three attachments: %s", what, checked)
		}
		down := call("down", env...)
		w.must(what+", then down", call("down"))
		w.Same(what+", then down", before, w.Snapshot())
		for _, ns := range []string{name + "-a", name + "-b"} {
			if _, err := os.Lstat("/run/netns/" + ns); err == nil {
				t.Fatalf("%s, then down: %s is there", what, ns)
			}
		}
		if up.exit != 0 || down.exit != 0 {
			interrupted++
		}
		if n+1 > changes {
			break
		}
	}
	if interrupted < 3 {
		t.Errorf("%d calls were interrupted", interrupted)
	}
}
