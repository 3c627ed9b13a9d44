// Command peak runs a program and writes its peak memory in KiB to a file: peak FILE PROGRAM
// [ARGUMENT]...
//
// The bench cannot measure that itself: ru_maxrss includes the memory of the process before
// execve(2), which is that of its parent. This parent is small.
package main

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: peak FILE PROGRAM [ARGUMENT]...")
		os.Exit(2)
	}
	code, err := run(os.Args[1], os.Args[2:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "peak:", err)
		os.Exit(2)
	}
	os.Exit(code)
}

// run waits for the program and returns its exit code, or 128 and the signal.
func run(file string, argv []string) (code int, err error) {
	pid, err := syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	if err != nil {
		return 0, err
	}
	var status syscall.WaitStatus
	var used syscall.Rusage
	for {
		_, err = syscall.Wait4(pid, &status, 0, &used)
		if err != syscall.EINTR {
			break
		}
	}
	if err != nil {
		return 0, err
	}
	if status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return status.ExitStatus(), os.WriteFile(file, []byte(strconv.FormatInt(int64(used.Maxrss), 10)), 0o600)
}
