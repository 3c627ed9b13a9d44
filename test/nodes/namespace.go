package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A namespace is the path of a network namespace; empty: the current one, which needs no privilege.
type namespace string

// do runs fn on a thread in the namespace; the thread ends afterwards. Sockets that fn opens stay
// in the namespace.
func (n namespace) do(fn func() error) error {
	if n == "" {
		return fn()
	}
	f, err := os.Open(string(n))
	if err != nil {
		return err
	}
	defer f.Close()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with this goroutine
		if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- os.NewSyscallError("setns", err)
			return
		}
		done <- fn()
	}()
	return <-done
}

// sysctls writes to /proc/sys in the namespace.
func (n namespace) sysctls(values ...string) error {
	return n.do(func() error {
		for _, v := range values {
			key, value, _ := strings.Cut(v, "=")
			if err := os.WriteFile("/proc/sys/"+key, []byte(value), 0); err != nil {
				return err
			}
		}
		return nil
	})
}

const (
	// commandTime limits one command, which is then killed.
	commandTime = time.Minute
	// timeLimit limits the wait for a state that no event reports.
	timeLimit = 40 * time.Second
)

// run runs a command and returns its stdout. The error has its stderr.
func run(argv ...string) (string, error) { return feed("", argv...) }

// feed is run with text on stdin.
func feed(stdin string, argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var out, diag bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &diag
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(out.String()+diag.String()))
	}
	return out.String(), nil
}

// eventually is within [timeLimit].
func eventually(fn func() error) error { return within(timeLimit, fn) }

// within calls fn until it succeeds; after limit it returns the last error.
func within(limit time.Duration, fn func() error) error {
	end := time.Now().Add(limit)
	for {
		err := fn()
		if err == nil || time.Now().After(end) {
			return err
		}
		<-time.After(50 * time.Millisecond)
	}
}

// inTurn calls the functions up to the first that fails.
func inTurn(fns ...func() error) error {
	for _, fn := range fns {
		if err := fn(); err != nil {
			return err
		}
	}
	return nil
}

// parallel calls fn for each concurrently and returns the first error.
func parallel[T any](list []T, fn func(T) error) error {
	errs := make(chan error, len(list))
	for _, x := range list {
		go func() { errs <- fn(x) }()
	}
	var first error
	for range list {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}
