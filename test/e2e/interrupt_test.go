package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/spec"
	"github.com/cnibox/cnibox/test/product"
)

// An interruption is a verb that gets signals while it waits for something.
type interruption struct {
	args    []string           // of cni-exec
	plugin  string             // called instead of cni-exec
	env     []string           // of the plugin
	conf    string             // of the plugin
	ready   func(pid int) bool // reports whether it waits
	says    string             // part of what it prints when it ends by itself; empty: the signal ends it, without a word
	signals []os.Signal        // nil: SIGTERM; after a second one it may also end without a word
}

// flocked returns the file that a thread of the process waits for in flock(2), or "".
func flocked(pid int) string {
	proc := "/proc/" + strconv.Itoa(pid)
	threads, _ := filepath.Glob(proc + "/task/*/syscall")
	for _, thread := range threads {
		text, _ := os.ReadFile(thread)
		var call, fd int
		if n, _ := fmt.Sscanf(string(text), "%d 0x%x", &call, &fd); n == 2 && call == unix.SYS_FLOCK {
			name, _ := os.Readlink(proc + "/fd/" + strconv.Itoa(fd))
			return name
		}
	}
	return ""
}

// holdLock locks a file of the world until the test ends; a name with a trailing slash is a
// directory. It returns what reports whether a process waits for that lock.
func (w *world) holdLock(name string) (waits func(pid int) bool) {
	w.Helper()
	if err := os.MkdirAll(filepath.Dir(w.Dir+"/"+name), 0o700); err != nil {
		w.Fatal(err)
	}
	how := os.O_CREATE | os.O_RDWR
	if strings.HasSuffix(name, "/") {
		how = os.O_RDONLY
	}
	f, err := os.OpenFile(w.Path(name), how, 0o600)
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { f.Close() })
	return func(pid int) bool { return flocked(pid) == f.Name() }
}

// interrupt starts cni-exec or a plugin, sends the signals when it waits, and fails the test if it
// does not end, or for another reason than the signal: it waits for something that never comes, and
// has timeouts of its own.
func (w *world) interrupt(i interruption) {
	w.Helper()
	cmd := exec.Command(w.Path("bin/cni-exec"), i.args...)
	cmd.Dir = w.Dir
	cmd.Env = w.interruptEnv()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if i.plugin != "" {
		cmd.Args = []string{i.plugin}
		cmd.Path, cmd.Env = w.Path("bin/"+i.plugin), append(cmd.Env, i.env...)
	}
	stdin, silent, err := os.Pipe()
	if err == nil && i.conf != "" {
		_, err = silent.WriteString(w.Expand(i.conf))
		silent.Close()
	}
	if err == nil {
		cmd.Stdin = stdin
		err = w.NS.Do(cmd.Start)
	}
	if err != nil {
		w.Fatal(err)
	}
	defer stdin.Close()
	defer silent.Close()
	stuck := time.AfterFunc(processTime, func() { cmd.Process.Kill() })
	defer stuck.Stop()
	kerneltest.Until(w.T, "a process that waits", func() bool { return i.ready(cmd.Process.Pid) })
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
	cmd.Wait()
	code := endedBy(cmd)
	bySignal := out.Len() == 0 && slices.ContainsFunc(signals, func(s os.Signal) bool { return code == 128+int(s.(syscall.Signal)) })
	ok := code != 0 && code != 137 && i.says != "" && strings.Contains(out.String(), i.says)
	if i.says == "" || len(signals) > 1 {
		ok = ok || bySignal
	}
	if !ok {
		w.Errorf("%s %q: exit code %d, want it to be ended by %v with %q\n%s", i.plugin, i.args, code, signals, i.says, out.String())
	}
}

// pending reports whether the process has an undelivered signal.
func pending(pid int) bool {
	status, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	return !bytes.Contains(status, []byte("ShdPnd:\t0000000000000000"))
}

// newInterruptWorld makes a world with a network of these plugins, and a container. The plugin slow
// hangs unless the file quick exists.
func newInterruptWorld(t *testing.T, plugins string) (*world, applettest.Container) {
	t.Parallel()
	w := newWorld(t)
	w.write("net.d/n.conflist", `{"cniVersion":"1.1.0","name":"n","plugins":[`+plugins+`]}`)
	w.write("plugins/slow", "#!/bin/sh\n[ -e $DIR/quick ] && exec echo '{\"cniVersion\":\"1.1.0\"}'\n: >$DIR/busy\nexec sleep 60\n")
	if err := os.Chmod(w.Path("plugins/slow"), 0o700); err != nil {
		t.Fatal(err)
	}
	w.write("state.json", fmt.Sprintf(`{"namespaces":{"%s":[{"network":"n"}]}}`, w.namespace()))
	return w, w.Container("ctr")
}

// namespace is the container's name in state.json.
func (w *world) namespace() string {
	return fmt.Sprintf("interrupted-%d-%s", os.Getpid(), filepath.Base(filepath.Dir(w.Dir)))
}

// cniExec runs cni-exec with the environment of interrupt.
func (w *world) cniExec(args ...string) answer {
	w.Helper()
	return w.run("", w.interruptEnv(), append([]string{w.Path("bin/cni-exec")}, args...)...)
}

func (w *world) interruptEnv() []string {
	return []string{"NETCONFPATH=" + w.Path("net.d"), "CNI_PATH=" + w.Path("plugins"), spec.StateEnv + "=" + w.Path("state"), "PATH=" + os.Getenv("PATH")}
}

// attached attaches the container. If earlier, it changes the entry of the cache to an earlier
// boot.
func (w *world) attached(c applettest.Container, earlier bool) {
	w.Helper()
	w.write("quick", "")
	w.must("add", w.cniExec("add", "n", c.Path))
	if err := os.Remove(w.Path("quick")); err != nil {
		w.Fatal(err)
	}
	if earlier {
		w.setEarlierBoot()
	}
}

// setEarlierBoot changes all entries of the cache to an earlier boot.
func (w *world) setEarlierBoot() {
	w.Helper()
	entries, err := filepath.Glob(w.Path("state/cni/results/*"))
	if more, _ := filepath.Glob(w.Path("state/results/*")); len(more) > 0 {
		entries = append(entries, more...)
	}
	if len(entries) == 0 {
		w.Fatalf("no entry of the cache: %v", err)
	}
	for _, name := range entries {
		text, err := os.ReadFile(name)
		if err == nil {
			_, rest, _ := strings.Cut(string(text), `"cniboxBootID":"`)
			id, _, _ := strings.Cut(rest, `"`)
			err = os.WriteFile(name, []byte(strings.Replace(string(text), id, "another", 1)), 0o600)
		}
		if err != nil {
			w.Fatal(err)
		}
	}
}

// What verbs print that were waiting for a lock, and a run that has not started its command.
const (
	canceled   = "held by another process: context canceled"
	notStarted = "ended by SIGTERM before the command was started"
)

const plainBridge = `{"type":"bridge","bridge":"br0","ipam":{"type":"host-local","dataDir":"$DIR/leases","subnet":"10.1.0.0/24"}}`

// Verbs that wait for a lock of the cache end.
func TestKernelInterruptLocked(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	for lock, verbs := range map[string][][]string{
		"state/cni/cnibox/locks/network-n": {
			{"add", "n", "NETNS"}, {"del", "n", "NETNS"}, {"check", "n", "NETNS"}, {"get", "n", "NETNS"}, {"gc", "n", "--all"}, {"run", "--", "true"}, {"rm", "n"},
		},
		"state/cni/cnibox/locks/up": {{"up", "state.json"}, {"down", "state.json"}},
	} {
		for _, args := range verbs {
			t.Run(args[0], func(t *testing.T) {
				w, c := newInterruptWorld(t, plainBridge)
				waits := w.holdLock(lock)
				says := map[string]string{"add": canceled, "run": notStarted}[args[0]]
				for i := range args {
					if args[i] == "NETNS" {
						args[i] = c.Path
					}
				}
				args = append(args[:1:1], append([]string{"--cache-dir", w.Path("state/cni")}, args[1:]...)...)
				w.interrupt(interruption{args: args, ready: waits, says: says})
			})
		}
	}
}

// Verbs that wait for the lock of host-local end; the bridge has been made.
func TestKernelInterruptLeases(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	for _, verb := range []string{"add", "run"} {
		t.Run(verb, func(t *testing.T) {
			w, c := newInterruptWorld(t, plainBridge)
			waits := w.holdLock("leases/n/lock")
			args, says := []string{"add", "n", c.Path}, canceled
			if verb == "run" {
				args, says = []string{"run", "--", "true"}, notStarted
			}
			w.interrupt(interruption{args: args, ready: waits, says: says})
			w.interrupt(interruption{args: args, ready: waits, says: says, signals: []os.Signal{syscall.SIGTERM, syscall.SIGINT}})
		})
	}
}

// Verbs end while an external plugin hangs, also in their undo.
func TestKernelInterruptPlugin(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	const killed, ended = "plugins/slow was killed", "ended by SIGTERM"
	for verb, of := range map[string]struct {
		args []string // NETNS is the container's
		says string
	}{
		"add":     {[]string{"n", "NETNS"}, killed},
		"run":     {[]string{"--", "true"}, notStarted},
		"up":      {[]string{"state.json"}, killed},
		"status":  {[]string{"n"}, killed},
		"version": {[]string{"n"}, killed},
		"del":     {[]string{"n", "NETNS"}, killed},
		"check":   {[]string{"n", "NETNS"}, killed},
		"get":     {[]string{"n", "NETNS"}, killed},
		"gc":      {[]string{"n", "--all"}, killed},
		"down":    {[]string{"state.json"}, killed},
		"reload":  {nil, ended},
		"doctor":  {nil, ended},
		earlier:   {nil, ended},
	} {
		t.Run(verb, func(t *testing.T) {
			w, c := newInterruptWorld(t, `{"type":"slow"}`)
			switch verb {
			case "check", "get", "reload", "doctor", earlier:
				w.attached(c, verb == earlier)
			case "up", "down":
				w.Cleanup(func() {
					w.write("quick", "")
					w.must("down", w.cniExec("down", "state.json"))
				})
			}
			if verb == "down" {
				w.write("quick", "")
				w.must("up", w.cniExec("up", "state.json"))
				if err := os.Remove(w.Path("quick")); err != nil {
					t.Fatal(err)
				}
			}
			args := []string{strings.Fields(verb)[0]}
			for _, arg := range of.args {
				args = append(args, strings.Replace(arg, "NETNS", c.Path, 1))
			}
			busy := func(int) bool { _, err := os.Stat(w.Path("busy")); return err == nil }
			w.interrupt(interruption{args: args, ready: busy, says: of.says})
		})
	}
}

// earlier is a reload that deletes an attachment of an earlier boot.
const earlier = "reload of an earlier boot"

// Verbs that wait for the lock of a container end.
func TestKernelInterruptAttached(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	for _, verb := range []string{"reload", earlier} {
		t.Run(verb, func(t *testing.T) {
			w, c := newInterruptWorld(t, plainBridge)
			w.attached(c, verb == earlier)
			locks, err := filepath.Glob(w.Path("state/*/cnibox/locks/network-n"))
			if more, _ := filepath.Glob(w.Path("state/cnibox/locks/network-n")); len(more) > 0 {
				locks = append(locks, more...)
			}
			if len(locks) != 1 {
				t.Fatalf("locks of the network are %q: %v", locks, err)
			}
			waits := w.holdLock(strings.TrimPrefix(locks[0], w.Dir+"/"))
			w.interrupt(interruption{args: []string{"reload"}, ready: waits})
		})
	}
}

// Plugins that wait for a lock end.
func TestKernelInterruptCalls(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	bridge := `{"cniVersion":"1.1.0","name":"n",` + strings.TrimPrefix(plainBridge, "{")
	ports := `{"cniVersion":"1.1.0","name":"n","type":"portmap","dataDir":"$DIR/ports","runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80}]},` +
		`"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/x"}],"ips":[{"interface":0,"address":"10.1.0.2/24"}]}}`
	for _, of := range []struct {
		plugin, conf, lock string
		verbs              []spec.Verb
		says               string
	}{
		{"host-local", bridge, "leases/n/lock", []spec.Verb{spec.Add, spec.Del, spec.GC}, ""},
		{"bridge", bridge, "leases/n/lock", []spec.Verb{spec.Del, spec.GC}, ""},
		{"bridge", bridge, "leases/n/lock", []spec.Verb{spec.Add}, canceled},
		{"portmap", ports, "ports/", []spec.Verb{spec.Add}, canceled},
		{"portmap", ports, "ports/", []spec.Verb{spec.Del, spec.GC}, ""},
	} {
		for _, verb := range of.verbs {
			for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
				t.Run(of.plugin+"/"+string(verb)+"/"+s.String(), func(t *testing.T) {
					w, c := newInterruptWorld(t, plainBridge)
					waits := w.holdLock(of.lock)
					conf := withMember(of.conf, goodValid)
					w.interrupt(interruption{
						plugin: of.plugin, env: append(c.Env(verb), "CNI_PATH="+w.Path("bin")), conf: conf,
						ready: waits, says: of.says, signals: []os.Signal{s},
					})
				})
			}
		}
	}
}

// Verbs that read from an idle stdin end.
func TestKernelInterruptStdin(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	reads := func(pid int) bool {
		text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/fdinfo/0")
		return len(text) > 0 && waitsForInput(pid)
	}
	for _, verb := range []string{"up", "down"} {
		t.Run(verb, func(t *testing.T) {
			w, _ := newInterruptWorld(t, plainBridge)
			w.interrupt(interruption{args: []string{verb, "-"}, ready: reads})
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

// waitsForInput reports whether a thread of the process waits in read(2) or poll(2).
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

// installed makes a directory with a link for each applet.
func installed(t *testing.T) string {
	dir := t.TempDir()
	product.Install(t, dir)
	return dir
}
