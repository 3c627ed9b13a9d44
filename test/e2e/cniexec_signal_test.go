package e2e

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cnibox/cnibox/internal/kerneltest"
)

// endedBy returns the exit code by which a shell reports how a program ended.
func endedBy(cmd *exec.Cmd) int {
	if s := cmd.ProcessState.Sys().(syscall.WaitStatus); s.Signaled() {
		return 128 + int(s.Signal())
	}
	return cmd.ProcessState.ExitCode()
}

// A signal that arrives while a plugin runs ends run with the exit code of a command that the
// signal ended, and deletes what was attached.
func TestKernelRunSignalInSetup(t *testing.T) {
	kerneltest.Slow(t)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		t.Run(sig.String(), func(t *testing.T) {
			r := newRunner(t)
			if err := os.Mkdir(r.Path("net.d"), 0o700); err != nil {
				t.Fatal(err)
			}
			r.file("net.d/n.conflist", `{"cniVersion":"1.1.0","name":"n","plugins":[{"type":"bridge","bridge":"br0"},{"type":"slow"}]}`)
			busy := r.Path("busy")
			r.file("slow", "#!/bin/sh\n[ $CNI_COMMAND = ADD ] || exit 0\n: >"+busy+"\nexec sleep 60\n")
			if err := os.Chmod(r.Path("slow"), 0o700); err != nil {
				t.Fatal(err)
			}
			cmd := r.command("true")
			out := new(strings.Builder)
			cmd.Stderr, cmd.Env = out, append(os.Environ(), "NETCONFPATH="+r.Path("net.d"), "CNI_PATH="+r.Dir)
			cmd.Args = []string{r.Path("bin/cni-exec"), "run", "--cache-dir", "cni", "--", "true"}
			if err := r.NS.Do(cmd.Start); err != nil {
				t.Fatal(err)
			}
			kerneltest.Until(t, "a plugin at work", func() bool { _, err := os.Stat(busy); return err == nil })
			cmd.Process.Signal(sig)
			cmd.Wait()
			if got := endedBy(cmd); got != 128+int(sig) {
				t.Errorf("got exit %d, want %d", got, 128+int(sig))
			}
			if !strings.Contains(out.String(), "before the command was started") {
				t.Errorf("stderr: %s", out)
			}
			r.clean()
		})
	}
}

// SIGTERM at any moment of a run, while the program, the network or the command starts, gives the
// same exit code.
func TestKernelRunSIGTERM(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	r := newRunner(t)
	for after := time.Duration(0); after < 60*time.Millisecond; after += 2 * time.Millisecond {
		cmd, out := r.start("sleep", "60")
		time.Sleep(after)
		cmd.Process.Signal(syscall.SIGTERM)
		stuck := time.AfterFunc(processTime, func() { cmd.Process.Kill() })
		cmd.Wait()
		stuck.Stop()
		if got := endedBy(cmd); got != 128+int(syscall.SIGTERM) {
			t.Errorf("after %s: got exit %d, want %d\n%s", after, got, 128+int(syscall.SIGTERM), out)
		}
	}
	// A run that was killed before it handled signals leaves nothing that the next one does not
	// delete.
	if next, out := r.start("true"); next.Wait() != nil {
		t.Error(out)
	}
	r.clean()
}
