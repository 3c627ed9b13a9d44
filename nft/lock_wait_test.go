package nft_test

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/internal/flock"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/spec"
)

// An update waits for a lock until the timeout, for a lock file as for the namespace's lock, which
// is used if the file cannot be created. The error has code 11 and names the lock.
func TestKernelLockTimeout(t *testing.T) {
	for name, path := range map[string]string{"file": filepath.Join(t.TempDir(), "lock"), "namespace": "/proc/none/lock"} {
		t.Run(name, func(t *testing.T) {
			table := nft.Open(kerneltest.NS(t), nft.WithLock(path))
			inside, leave := make(chan bool), make(chan bool)
			holder := make(chan error, 1)
			go func() {
				holder <- table.Update(context.Background(), func(*nft.Tx) error { inside <- true; <-leave; return nil })
			}()
			<-inside
			flock.Timeout = 20 * time.Millisecond
			t.Cleanup(func() { flock.Timeout = 30 * time.Second })
			err := table.Update(context.Background(), everything)
			if !errors.Is(err, context.DeadlineExceeded) || spec.AsError(err).Code != spec.CodeTryAgain ||
				!strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "held by another process") {
				t.Errorf("got code %d, %v", spec.AsError(err).Code, err)
			}
			leave <- true
			if err := <-holder; err != nil {
				t.Error(err)
			}
		})
	}
}

// Without a lock file, processes in the same namespace exclude each other, and no others.
func TestKernelNamespaceLockExcludes(t *testing.T) {
	program, err := exec.LookPath("flock")
	if err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	ns := kerneltest.NS(t)
	holder := exec.Command(program, "/proc/self/ns/net", "sh", "-c", "echo locked; cat")
	stdin, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := holder.StdoutPipe()
	if err == nil {
		err = ns.Do(holder.Start)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { stdin.Close(); holder.Wait() }()
	if _, err := stdout.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := nft.Open(ns, nft.WithLock("/proc/none/lock")).Update(ctx, everything); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v while another process has the lock", err)
	}
	mustUpdate(t, nft.Open(kerneltest.NS(t), nft.WithLock("/proc/none/lock")), everything)
	stdin.Close()
	mustUpdate(t, nft.Open(ns, nft.WithLock("/proc/none/lock")), everything)
}
