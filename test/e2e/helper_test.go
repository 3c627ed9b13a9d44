package e2e

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/applets/applettest"
	"cnibox/internal/kerneltest"
	"cnibox/spec"
	"cnibox/test/product"
)

// No verb of any plugin starts another program or makes another process, also with delegates.
// ptrace(2) watches them.
func TestKernelNoHelper(t *testing.T) {
	kerneltest.OneKernel(t)
	t.Parallel()
	eachPlugin(t, func(t *testing.T, plugin string, f fixture) {
		t.Parallel()
		w, _ := f.host(t, plugin, true)
		c := w.Container("ctr")
		a := w.attach(plugin, c, w.alone)
		for i := range a.steps {
			a.steps[i].conf = withMember(a.steps[i].conf, `"cni.dev/valid-attachments":[{"containerID":"ctr","ifname":"eth0"}]`)
		}
		for _, verb := range []spec.Verb{spec.Check, spec.Get, spec.GC, spec.Status, spec.GetVersion} {
			a.must(verb, a.last())
		}
		a.del()
	})
}

// The watch reports a delegate that is started, and a program of a shell.
func TestKernelWatchSeesHelpers(t *testing.T) {
	kerneltest.Slow(t)
	w := newWorld(t)
	conf := goodConf("bridge")
	a, started := w.watched(w.Expand(conf), w.Container("ctr").Env(spec.Status, product.ForceExec+"=1"), w.Path("bin/bridge"))
	w.must("STATUS with its delegate started", a)
	// Before its first program, package os checks in a child process whether the kernel has pidfds.
	if n := len(started); n < 2 || n > 3 || started[0] != started[n-2] || !strings.HasPrefix(started[n-1], "the program ") {
		t.Errorf("a delegate: %q", started)
	}
	a, started = w.watched("", nil, "/bin/sh", "-c", ": & wait; exec /bin/sh -c :")
	w.must("shell", a)
	if len(started) != 2 {
		t.Errorf("a shell: %q", started)
	}
}

// The watch leaves the children of other goroutines to these.
func TestKernelWatchLeavesChildren(t *testing.T) {
	w := newWorld(t)
	const threads = 20
	var all sync.WaitGroup
	others, ended := make(chan *exec.Cmd, threads), make(chan struct{})
	for range threads {
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			cmd := exec.Command("/bin/sh", "-c", ":")
			err := cmd.Start()
			if err == nil {
				err = unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
			}
			if err != nil {
				t.Error(err)
			}
			others <- cmd
			<-ended // then each child has a thread of its own
		})
	}
	started := make([]*exec.Cmd, threads)
	for i := range started {
		started[i] = <-others
	}
	close(ended)
	all.Wait()
	for range threads {
		a, _ := w.watched("", nil, "/bin/sh", "-c", ":")
		w.must("shell", a)
	}
	for _, cmd := range started {
		if err := cmd.Wait(); err != nil {
			t.Errorf("a child of another goroutine: %v", err)
		}
	}
}

// alone is a caller whose process must start no other.
func (w *world) alone(verb spec.Verb, applet, conf string, c applettest.Container, env ...string) answer {
	w.Helper()
	a, started := w.watched(w.Expand(conf), c.Env(verb, env...), w.Path("bin/"+applet))
	if len(started) != 0 {
		w.Errorf("%s %s starts %q", verb, applet, started)
	}
	return a
}

// watched is run, and also returns what the program starts.
func (w *world) watched(stdin string, env []string, argv ...string) (a answer, started []string) {
	w.Helper()
	err := w.onThreadWithoutChildren(func() (err error) {
		var files [3]*os.File
		for i := range files {
			if files[i], err = memfd(); err != nil {
				return err
			}
			defer files[i].Close()
		}
		if _, err := files[0].WriteAt([]byte(stdin), 0); err != nil {
			return err
		}
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Dir, cmd.Env = w.Dir, append([]string{"CNI_PATH=" + w.Path("bin")}, env...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = files[0], files[1], files[2]
		begin := time.Now()
		if started, err = watch(cmd, &a); err != nil {
			return err
		}
		a.took = time.Since(begin)
		for i, into := range []*string{&a.stdout, &a.stderr} {
			text, err := io.ReadAll(io.NewSectionReader(files[i+1], 0, 1<<20))
			if err != nil {
				return err
			}
			*into = string(text)
		}
		return nil
	})
	if err != nil {
		w.Fatal(err)
	}
	return a, started
}

// onThreadWithoutChildren runs fn in the namespace, on a locked thread without child processes: watch
// waits for any child of its thread, and Go runs several goroutines on one thread after another.
func (w *world) onThreadWithoutChildren(fn func() error) error {
	return w.NS.Do(func() error {
		if children, _ := os.ReadFile("/proc/thread-self/children"); len(children) == 0 {
			return fn()
		}
		err := make(chan error)
		go func() { err <- w.onThreadWithoutChildren(fn) }()
		return <-err // this thread runs no other goroutine before
	})
}

// memfd makes an unnamed file in memory.
func memfd() (*os.File, error) {
	fd, err := unix.MemfdCreate("stream", unix.MFD_CLOEXEC)
	return os.NewFile(uintptr(fd), "stream"), err
}

// watch runs a program and lists each process that it makes and each program that one of them
// executes; threads are counted. The calling thread, which is locked, is the tracer.
func watch(cmd *exec.Cmd, a *answer) (started []string, err error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	pid := cmd.Process.Pid
	stuck := time.AfterFunc(processTime, func() { cmd.Process.Kill() })
	defer stuck.Stop()
	var ws unix.WaitStatus
	if _, err := unix.Wait4(pid, &ws, 0, nil); err != nil {
		return nil, err
	}
	if !ws.Stopped() {
		return nil, fmt.Errorf("%s did not stop at its start: %v", cmd.Path, ws)
	}
	const options = unix.PTRACE_O_EXITKILL | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACEEXEC
	if err := unix.PtraceSetOptions(pid, options); err != nil {
		return nil, os.NewSyscallError("ptrace", err)
	}
	for at, deliver := pid, 0; ; {
		// ESRCH: another thread has ended the process meanwhile
		if err := unix.PtraceCont(at, deliver); err != nil && !errors.Is(err, unix.ESRCH) {
			return nil, os.NewSyscallError("ptrace", err)
		}
		for {
			at, err = unix.Wait4(-1, &ws, unix.WALL|unix.WNOTHREAD, nil)
			if !errors.Is(err, unix.EINTR) {
				break
			}
		}
		switch {
		case err != nil:
			return nil, os.NewSyscallError("wait4", err)
		case ws.Stopped():
			var what string
			switch what, deliver = event(at, ws); what {
			case "":
			case aThread:
				a.threads++
			default:
				started = append(started, what)
			}
		case at == pid:
			cmd.Process.Release()
			a.exit = ws.ExitStatus()
			return slices.Clip(started), nil
		}
	}
}

// event returns what a ptrace stop reports, or "" and the signal to continue with.
func event(at int, ws unix.WaitStatus) (what string, deliver int) {
	sig := ws.StopSignal()
	switch {
	case sig == unix.SIGSTOP: // the first stop of a new thread
		return "", 0
	case sig != unix.SIGTRAP:
		return "", int(sig)
	}
	child, _ := unix.PtraceGetEventMsg(at)
	switch ws.TrapCause() {
	case unix.PTRACE_EVENT_EXEC:
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", at))
		return "the program " + strings.ReplaceAll(string(name), "\x00", " "), 0
	case unix.PTRACE_EVENT_FORK, unix.PTRACE_EVENT_VFORK:
		return "a process", 0
	case unix.PTRACE_EVENT_CLONE:
		// A thread is gone only with its process; a new process would wait in its first stop.
		if group := threadGroup(int(child)); group != "" && group != threadGroup(at) {
			return "a process", 0
		}
		return aThread, 0
	}
	return "", 0
}

// aThread is counted, not listed.
const aThread = "a thread"

// threadGroup returns the ID of the process that a thread belongs to; empty: the thread is gone.
func threadGroup(thread int) string {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", thread))
	_, group, _ := strings.Cut(string(status), "\nTgid:\t")
	group, _, _ = strings.Cut(group, "\n")
	return group
}
