package product

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// watcher is the name of the command "watch FILE COMMAND [ARG …]": it runs a command and lists in a file
// each process that the command makes, and each program that one of them executes. It is a process of its
// own, since it waits for any child.
const watcher = "watch"

// watchMain is the main function of the watcher, on the locked thread that is the tracer.
func watchMain() int {
	started, exit, err := watch(exec.Command(os.Args[2], os.Args[3:]...))
	var list strings.Builder
	for _, s := range started {
		fmt.Fprintln(&list, s)
	}
	if err := errors.Join(err, os.WriteFile(os.Args[1], []byte(list.String()), 0o600)); err != nil {
		fmt.Fprintln(os.Stderr, "watch:", err)
		return 125
	}
	return exit
}

// watch runs a command and returns what it starts, by ptrace(2), and its exit code. Threads do not count.
func watch(cmd *exec.Cmd) (started []string, exit int, err error) {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		return nil, -1, err
	}
	pid := cmd.Process.Pid
	var ws unix.WaitStatus
	if _, err := unix.Wait4(pid, &ws, 0, nil); err != nil {
		return nil, -1, err
	}
	if !ws.Stopped() {
		return nil, -1, fmt.Errorf("%s did not stop at its start: %v", cmd.Path, ws)
	}
	const options = unix.PTRACE_O_EXITKILL | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACEEXEC
	if err := unix.PtraceSetOptions(pid, options); err != nil {
		return nil, -1, os.NewSyscallError("ptrace", err)
	}
	for at, deliver := pid, 0; ; {
		// ESRCH: another thread has ended the process meanwhile
		if err := unix.PtraceCont(at, deliver); err != nil && !errors.Is(err, unix.ESRCH) {
			return nil, -1, os.NewSyscallError("ptrace", err)
		}
		for {
			if at, err = unix.Wait4(-1, &ws, unix.WALL, nil); !errors.Is(err, unix.EINTR) {
				break
			}
		}
		switch {
		case err != nil:
			return nil, -1, os.NewSyscallError("wait4", err)
		case ws.Stopped():
			var what string
			if what, deliver = event(at, ws); what != "" {
				started = append(started, what)
			}
		case at == pid && ws.Exited():
			return started, ws.ExitStatus(), nil
		case at == pid:
			return started, 128 + int(ws.Signal()), nil
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
	switch ws.TrapCause() {
	case unix.PTRACE_EVENT_EXEC:
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", at))
		return "the program " + strings.TrimRight(strings.ReplaceAll(string(name), "\x00", " "), " "), 0
	case unix.PTRACE_EVENT_FORK, unix.PTRACE_EVENT_VFORK:
		return "a process", 0
	case unix.PTRACE_EVENT_CLONE:
		// A thread is gone only with its process; a new process would wait in its first stop.
		child, _ := unix.PtraceGetEventMsg(at)
		if group := threadGroup(int(child)); group != "" && group != threadGroup(at) {
			return "a process", 0
		}
	}
	return "", 0
}

// threadGroup returns the ID of the process that a thread belongs to; empty: the thread is gone.
func threadGroup(thread int) string {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", thread))
	_, group, _ := strings.Cut(string(status), "\nTgid:\t")
	group, _, _ = strings.Cut(group, "\n")
	return group
}
