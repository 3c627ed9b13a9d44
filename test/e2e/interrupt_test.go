package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/applets/applettest"
	"cnibox/internal/kerneltest"
	"cnibox/spec"
	"cnibox/test/product"
)

// atOnce is how long a verb may take to end after a signal if nothing has to be undone; undone if a
// process or a lock keeps the undo waiting until its timeout. [slack] adds to both on a busy
// machine.
const (
	atOnce = time.Second
	undone = 11 * time.Second
)

// slack is added to these limits on a busy machine: one second for each runnable process on a core
// beyond the first, but less than the three seconds that a verb waits for a lock by itself, which
// must not be hidden.
func slack() time.Duration {
	var load float64
	text, _ := os.ReadFile("/proc/loadavg")
	fmt.Sscan(string(text), &load) // on error load stays 0: an idle machine
	more := time.Duration((load/float64(runtime.NumCPU()) - 1) * float64(time.Second))
	return min(max(more, 0), 1500*time.Millisecond)
}

// An interruption is a verb that gets signals while it waits for something.
type interruption struct {
	args    []string           // of cni-exec
	plugin  string             // called instead of cni-exec
	env     []string           // of the plugin
	conf    string             // of the plugin
	ready   func(pid int) bool // reports whether it waits
	within  time.Duration
	signals []os.Signal // nil: SIGTERM; the last one ends it
}

// inFlock reports whether a thread of the process waits in flock(2).
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

// holdLock locks a file of the world until the test ends; a name with a trailing slash is a
// directory.
func (w *world) holdLock(name string) {
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
}

// interrupt starts cni-exec or a plugin, sends the signals when it waits, and fails the test if it
// does not end.
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
	within := kerneltest.Timeout(i.within + slack())
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
	if code := endedBy(cmd); took > within || code == 0 || code == 137 {
		w.Errorf("%s %q: exit code %d, %s after the signal, want an error within %s\n%s", i.plugin, i.args, code, took, within, out.String())
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

const plainBridge = `{"type":"bridge","bridge":"br0","ipam":{"type":"host-local","dataDir":"$DIR/leases","subnet":"10.1.0.0/24"}}`

// Verbs that wait for a lock of the cache end.
func TestKernelInterruptLocked(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	for lock, verbs := range map[string][][]string{
		"state/cni/cnibox/locks/network-n": {
			{"add", "n", "NETNS"}, {"del", "n", "NETNS"}, {"check", "n", "NETNS"}, {"get", "n", "NETNS"}, {"gc", "n", "--keep-none"}, {"run", "--", "true"}, {"rm", "n"},
		},
		"state/cni/cnibox/locks/up": {{"up", "state.json"}, {"down", "state.json"}},
	} {
		for _, args := range verbs {
			t.Run(args[0], func(t *testing.T) {
				w, c := newInterruptWorld(t, plainBridge)
				w.holdLock(lock)
				for i := range args {
					if args[i] == "NETNS" {
						args[i] = c.Path
					}
				}
				args = append(args[:1:1], append([]string{"--cache-dir", w.Path("state/cni")}, args[1:]...)...)
				w.interrupt(interruption{args: args, ready: inFlock, within: atOnce})
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
			w.holdLock("leases/n/lock")
			args := []string{"add", "n", c.Path}
			if verb == "run" {
				args = []string{"run", "--", "true"}
			}
			w.interrupt(interruption{args: args, ready: inFlock, within: undone})
			w.interrupt(interruption{args: args, ready: inFlock, within: atOnce, signals: []os.Signal{syscall.SIGTERM, syscall.SIGINT}})
		})
	}
}

// Verbs end while an external plugin hangs, also in their undo.
func TestKernelInterruptPlugin(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	for verb, of := range map[string]struct {
		args   []string // NETNS is the container's
		within time.Duration
	}{
		"add":     {[]string{"n", "NETNS"}, undone},
		"run":     {[]string{"--", "true"}, undone},
		"up":      {[]string{"state.json"}, undone},
		"status":  {[]string{"n"}, atOnce},
		"version": {[]string{"n"}, atOnce},
		"del":     {[]string{"n", "NETNS"}, atOnce},
		"check":   {[]string{"n", "NETNS"}, atOnce},
		"get":     {[]string{"n", "NETNS"}, atOnce},
		"gc":      {[]string{"n", "--keep-none"}, atOnce},
		"down":    {[]string{"state.json"}, atOnce},
		"reload":  {nil, atOnce},
		"doctor":  {nil, atOnce},
		"boot":    {nil, atOnce},
	} {
		t.Run(verb, func(t *testing.T) {
			w, c := newInterruptWorld(t, `{"type":"slow"}`)
			switch verb {
			case "check", "get", "reload", "doctor", "boot":
				w.attached(c, verb == "boot")
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
			args := []string{verb}
			for _, arg := range of.args {
				args = append(args, strings.Replace(arg, "NETNS", c.Path, 1))
			}
			busy := func(int) bool { _, err := os.Stat(w.Path("busy")); return err == nil }
			w.interrupt(interruption{args: args, ready: busy, within: of.within})
		})
	}
}

// Verbs that wait for the lock of a container end.
func TestKernelInterruptAttached(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	for _, verb := range []string{"reload", "boot"} {
		t.Run(verb, func(t *testing.T) {
			w, c := newInterruptWorld(t, plainBridge)
			w.attached(c, verb == "boot")
			locks, err := filepath.Glob(w.Path("state/*/cnibox/locks/network-n"))
			if more, _ := filepath.Glob(w.Path("state/cnibox/locks/network-n")); len(more) > 0 {
				locks = append(locks, more...)
			}
			if len(locks) != 1 {
				t.Fatalf("locks of the network are %q: %v", locks, err)
			}
			w.holdLock(strings.TrimPrefix(locks[0], w.Dir+"/"))
			w.interrupt(interruption{args: []string{verb}, ready: inFlock, within: atOnce})
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
		within             time.Duration
	}{
		{"host-local", bridge, "leases/n/lock", []spec.Verb{spec.Add, spec.Del, spec.GC}, atOnce},
		{"bridge", bridge, "leases/n/lock", []spec.Verb{spec.Del, spec.GC}, atOnce},
		{"bridge", bridge, "leases/n/lock", []spec.Verb{spec.Add}, undone},
		{"portmap", ports, "ports/", []spec.Verb{spec.Add, spec.Del, spec.GC}, atOnce},
	} {
		for _, verb := range of.verbs {
			for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
				t.Run(of.plugin+"/"+string(verb)+"/"+s.String(), func(t *testing.T) {
					w, c := newInterruptWorld(t, plainBridge)
					w.holdLock(of.lock)
					conf := withMember(of.conf, goodValid)
					w.interrupt(interruption{
						plugin: of.plugin, env: append(c.Env(verb), "CNI_PATH="+w.Path("bin")), conf: conf,
						ready: inFlock, within: of.within, signals: []os.Signal{s},
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
