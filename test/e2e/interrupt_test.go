package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/internal/kerneltest"
	"cnibox/spec"
	"cnibox/test/product"
)

// atOnce is how long a verb may take to end when a signal comes and nothing has to be undone: a second,
// and what a busy machine adds; all that verbs wait for by themselves takes longer.
var atOnce = kerneltest.Timeout(2500 * time.Millisecond)

// undone is the same where a process or a lock keeps the undo from ending before its bound.
var undone = kerneltest.Timeout(13 * time.Second)

// An interruption is a verb that waits for something when the signal comes.
type interruption struct {
	args    []string
	ready   func(pid int) bool // it waits
	within  time.Duration
	signals []os.Signal // nil: SIGTERM; the last one ends it
}

// inFlock reports whether a thread of a process waits for a lock.
func inFlock(pid int) bool {
	threads, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/syscall")
	for _, thread := range threads {
		text, _ := os.ReadFile(thread)
		if bytes.HasPrefix(text, []byte(strconv.Itoa(unix.SYS_FLOCK)+" ")) {
			return true
		}
	}
	return false
}

// hold locks a file of the world until the test ends.
func (w *world) hold(name string) {
	w.Helper()
	if err := os.MkdirAll(filepath.Dir(w.path(name)), 0o700); err != nil {
		w.Fatal(err)
	}
	f, err := os.OpenFile(w.path(name), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { f.Close() })
}

// interrupt starts cni-exec, sends it the signals when it waits, and fails the test if it does not end.
func (w *world) interrupt(i interruption) {
	w.Helper()
	cmd := exec.Command(w.path("bin/cni-exec"), i.args...)
	cmd.Dir = w.dir
	cmd.Env = []string{"NETCONFPATH=" + w.path("net.d"), "CNI_PATH=" + w.path("plugins"), spec.StateEnv + "=" + w.path("state"), "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	stdin, silent, err := os.Pipe() // of which nothing comes
	if err == nil {
		cmd.Stdin = stdin
		err = w.host.Do(cmd.Start)
	}
	if err != nil {
		w.Fatal(err)
	}
	defer stdin.Close()
	defer silent.Close()
	stuck := time.AfterFunc(processTime, func() { cmd.Process.Kill() })
	defer stuck.Stop()
	kerneltest.Until(w.T, "cni-exec that waits", func() bool { return i.ready(cmd.Process.Pid) })
	signals := i.signals
	if signals == nil {
		signals = []os.Signal{syscall.SIGTERM}
	}
	for n, s := range signals {
		if n > 0 {
			kerneltest.Until(w.T, "the first signal taken", func() bool { return !pending(cmd.Process.Pid) })
		}
		cmd.Process.Signal(s)
	}
	begin := time.Now()
	cmd.Wait()
	took := time.Since(begin)
	if code := endedBy(cmd); took > i.within || code == 0 || code == 137 {
		w.Errorf("%q: exit code %d, %s after the signal, want an error within %s\n%s", i.args, code, took, i.within, out.String())
	}
}

// pending reports whether a process has a signal that was not delivered yet.
func pending(pid int) bool {
	status, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	return !bytes.Contains(status, []byte("ShdPnd:\t0000000000000000"))
}

// interrupted is a world with a network whose list is l, and a container.
func interrupted(t *testing.T, plugins string) (*world, container) {
	t.Parallel()
	w := newWorld(t)
	w.write("net.d/n.conflist", `{"cniVersion":"1.1.0","name":"n","plugins":[`+plugins+`]}`)
	w.write("plugins/slow", "#!/bin/sh\n: >$DIR/busy\nexec sleep 60\n")
	if err := os.Chmod(w.path("plugins/slow"), 0o700); err != nil {
		t.Fatal(err)
	}
	w.write("state.json", `{"namespaces":{"n1":[{"network":"n"}]}}`)
	return w, w.container("ctr")
}

const plainBridge = `{"type":"bridge","bridge":"br0","ipam":{"type":"host-local","dataDir":"$DIR/leases","subnet":"10.1.0.0/24"}}`

// TestKernelInterruptLocked ends verbs that wait for a lock of the cache which another process has.
func TestKernelInterruptLocked(t *testing.T) {
	for lock, verbs := range map[string][][]string{
		"state/cni/cnibox/locks/network-n": {
			{"add", "n", "NETNS"}, {"del", "n", "NETNS"}, {"check", "n", "NETNS"}, {"get", "n", "NETNS"}, {"gc", "n", "--all"}, {"run", "--", "true"}, {"rm", "n"},
		},
		"state/cni/cnibox/locks/up": {{"up", "state.json"}, {"down", "state.json"}},
	} {
		for _, args := range verbs {
			t.Run(args[0], func(t *testing.T) {
				w, c := interrupted(t, plainBridge)
				w.hold(lock)
				for i := range args {
					if args[i] == "NETNS" {
						args[i] = c.path
					}
				}
				args = append(args[:1:1], append([]string{"--cache-dir", w.path("state/cni")}, args[1:]...)...)
				w.interrupt(interruption{args: args, ready: inFlock, within: atOnce})
			})
		}
	}
}

// TestKernelInterruptLeases ends verbs that wait for the lock of host-local, when the bridge has been made.
func TestKernelInterruptLeases(t *testing.T) {
	for _, verb := range []string{"add", "run"} {
		t.Run(verb, func(t *testing.T) {
			w, c := interrupted(t, plainBridge)
			w.hold("leases/n/lock")
			args := []string{"add", "n", c.path}
			if verb == "run" {
				args = []string{"run", "--", "true"}
			}
			w.interrupt(interruption{args: args, ready: inFlock, within: undone})
			w.interrupt(interruption{args: args, ready: inFlock, within: atOnce, signals: []os.Signal{syscall.SIGTERM, syscall.SIGINT}})
		})
	}
}

// TestKernelInterruptPlugin ends verbs while an external plugin hangs, in its undo as well.
func TestKernelInterruptPlugin(t *testing.T) {
	for verb, within := range map[string]time.Duration{"add": undone, "run": undone, "status": atOnce, "del": atOnce, "gc": atOnce, "version": atOnce} {
		t.Run(verb, func(t *testing.T) {
			w, c := interrupted(t, `{"type":"slow"}`)
			args := []string{verb, "n", c.path}
			switch verb {
			case "run":
				args = []string{"run", "--", "true"}
			case "status", "version":
				args = args[:2]
			case "gc":
				args = []string{"gc", "n", "--all"}
			}
			busy := func(int) bool { _, err := os.Stat(w.path("busy")); return err == nil }
			w.interrupt(interruption{args: args, ready: busy, within: within})
		})
	}
}

// TestKernelInterruptStdin ends verbs that read a stdin of which nothing comes.
func TestKernelInterruptStdin(t *testing.T) {
	reads := func(pid int) bool {
		text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/fdinfo/0")
		return len(text) > 0 && waitsForInput(pid)
	}
	for _, verb := range []string{"up", "down"} {
		t.Run(verb, func(t *testing.T) {
			w, _ := interrupted(t, plainBridge)
			w.interrupt(interruption{args: []string{verb, "-"}, ready: reads, within: atOnce})
		})
	}
	for _, verb := range append(allVerbs, spec.GetVersion) {
		if verb == spec.GetVersion {
			continue // it does not wait
		}
		t.Run(string(verb), func(t *testing.T) {
			t.Parallel()
			if code, _ := terminated(t, filepath.Join(installed(t), "bridge"), verb); code != -1 {
				t.Errorf("exit code %d, want the signal's", code)
			}
		})
	}
}

// waitsForInput reports whether a thread of a process waits in read(2) or poll(2).
func waitsForInput(pid int) bool {
	threads, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/wchan")
	for _, thread := range threads {
		text, err := os.ReadFile(thread)
		if err == nil && (bytes.Contains(text, []byte("pipe")) || bytes.Contains(text, []byte("poll"))) {
			return true
		}
	}
	return false
}

// installed is a directory with a link for each applet.
func installed(t *testing.T) string {
	dir := t.TempDir()
	product.Install(t, dir)
	return dir
}
