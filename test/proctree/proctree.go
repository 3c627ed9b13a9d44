// Package proctree starts programs and ends them with everything that they have started: a process whose
// parent ends becomes a child of this one, whichever process group or session it has made for itself.
package proctree

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A Tree is this process with all its descendants. It reaps every child, so that a program may have one
// Tree, and waits for no process otherwise.
type Tree struct {
	mu    sync.Mutex
	ended map[int]chan int // exit codes, by process ID
}

// New makes this process the one that takes orphans (prctl(2), PR_SET_CHILD_SUBREAPER).
func New() (*Tree, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, os.NewSyscallError("prctl", err)
	}
	return &Tree{ended: map[int]chan int{}}, nil
}

// Start starts a program, whose streams are files or nil. Its exit code is sent when it has ended: 128 and
// the number of the signal that killed it.
func (t *Tree) Start(cmd *exec.Cmd) (<-chan int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	done := make(chan int, 1)
	t.ended[cmd.Process.Pid] = done
	go t.reap()
	return done, nil
}

// reap waits for children until there are none.
func (t *Tree) reap() {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return // ECHILD
		}
		code := status.ExitStatus()
		if status.Signaled() {
			code = 128 + int(status.Signal())
		}
		t.mu.Lock()
		if done := t.ended[pid]; done != nil {
			done <- code
			delete(t.ended, pid)
		}
		t.mu.Unlock()
	}
}

// Kill ends all descendants and returns their names: by SIGTERM, and what has not ended after the grace time by
// SIGKILL.
func (t *Tree) Kill(grace time.Duration) (names []string) {
	for pid, name := range descendants() {
		names = append(names, fmt.Sprintf("%s (%d)", name, pid))
		_ = unix.Kill(pid, unix.SIGTERM)
	}
	for end := time.Now().Add(grace); ; time.Sleep(10 * time.Millisecond) {
		left := descendants()
		if len(left) == 0 {
			return names
		}
		if time.Now().After(end) {
			for pid := range left {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	}
}

// descendants returns the names of the processes that descend from this one and have not ended.
func descendants() map[int]string {
	parents, names := map[int]int{}, map[int]string{}
	dir, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range dir {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		begin, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
		if fields := bytes.Fields(text[end+1:]); len(fields) > 1 && fields[0][0] != 'Z' && fields[0][0] != 'X' {
			parents[pid], _ = strconv.Atoi(string(fields[1]))
			names[pid] = string(text[begin+1 : end])
		}
	}
	found := map[int]string{}
	for pid, name := range names {
		above := parents[pid]
		for above > 1 && above != os.Getpid() {
			above = parents[above]
		}
		if above == os.Getpid() {
			found[pid] = name
		}
	}
	return found
}
