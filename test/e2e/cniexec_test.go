package e2e

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cnibox/cnibox/internal/kerneltest"
)

// runner starts cni-exec run in its own host namespace.
type runner struct{ *world }

func newRunner(t *testing.T) *runner {
	t.Helper()
	if _, err := exec.LookPath("sleep"); err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	return &runner{newWorld(t)}
}

// command returns a run on the default network. It has no controlling terminal, even if the tests
// have one: run does not forward signals of a terminal. The cache directory is a relative path.
func (r *runner) command(command ...string) *exec.Cmd {
	args := []string{"run", "--conf-dir", r.Path("none"), "--cache-dir", "cni", "--"}
	cmd := exec.Command(r.Path("bin/cni-exec"), append(args, command...)...)
	cmd.Dir = r.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd
}

func (r *runner) start(command ...string) (*exec.Cmd, *bytes.Buffer) {
	r.Helper()
	cmd, out := r.command(command...), new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = out, out
	if err := r.NS.Do(cmd.Start); err != nil {
		r.Fatal(err)
	}
	return cmd, out
}

func (r *runner) attached() bool {
	files, _ := filepath.Glob(filepath.Join(r.Dir, "cni", "results", "*"))
	for _, f := range files {
		if b, _ := os.ReadFile(f); bytes.Contains(b, []byte("cniCacheV1")) {
			return true
		}
	}
	return false
}

// clean checks that nothing is left but the bridge.
func (r *runner) clean() {
	r.Helper()
	if files, _ := filepath.Glob(filepath.Join(r.Dir, "cni", "results", "*")); len(files) > 0 {
		r.Errorf("the cache has %q", files)
	}
	if leases, _ := filepath.Glob(filepath.Join(r.Dir, "cni", "networks", "cnibox", "[0-9f]*")); len(leases) > 0 {
		r.Errorf("leases are left: %q", leases)
	}
	links, err := kerneltest.Dial(r.T, r.NS).Links()
	if err != nil {
		r.Fatal(err)
	}
	for _, l := range links {
		if strings.HasPrefix(l.Name, "veth") {
			r.Errorf("link %s is left", l.Name)
		}
	}
}

// run forwards signals to the command, and deletes the attachment when the command ends.
func TestKernelRunSignals(t *testing.T) {
	kerneltest.Slow(t)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		t.Run(sig.String(), func(t *testing.T) {
			r := newRunner(t)
			cmd, out := r.start("sleep", "60")
			kerneltest.Until(t, "an attachment", r.attached)
			cmd.Process.Signal(sig)
			err := cmd.Wait()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 128+int(sig) {
				t.Errorf("got %v, want exit %d\n%s", err, 128+int(sig), out)
			}
			r.clean()
		})
	}
}

// Ctrl-C and Ctrl-\ on the terminal of a run: the kernel signals the whole foreground group, so the
// command gets each signal once, and not from run as well. Forwarded signals keep their order, so
// the SIGUSR1 at the end would arrive after a second one.
func TestKernelRunTerminal(t *testing.T) {
	kerneltest.Slow(t)
	r := newRunner(t)
	master, slave := kerneltest.Terminal(t)
	cmd := r.command("sh", "-c", `trap "echo int:" INT; trap "echo quit:" QUIT; trap "echo end; exit 3" USR1; echo ready:; while :; do read x; done`)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr.Setctty = true // the child's descriptor 0
	if err := r.NS.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	stuck := time.AfterFunc(processTime, func() { cmd.Process.Kill() })
	defer stuck.Stop()
	// A shell that gets a signal just before it reads handles it only after a line.
	lines := time.NewTicker(20 * time.Millisecond)
	defer lines.Stop()
	go func() {
		for range lines.C {
			master.WriteString("\n")
		}
	}()
	seen := ""
	for out := bufio.NewReader(master); ; {
		line, err := out.ReadString(':')
		seen += line
		switch {
		case strings.HasSuffix(line, "ready:"):
			master.WriteString("\x03")
		case strings.HasSuffix(line, "int:") && strings.Count(seen, "int:") == 1:
			master.WriteString("\x1c")
		case strings.HasSuffix(line, "quit:") && strings.Count(seen, "quit:") == 1:
			cmd.Process.Signal(syscall.SIGUSR1)
		}
		if err != nil { // EIO: no process has the terminal open
			break
		}
	}
	cmd.Wait()
	if exit := cmd.ProcessState.ExitCode(); exit != 3 || strings.Count(seen, "int:") != 1 || strings.Count(seen, "quit:") != 1 {
		t.Errorf("got exit %d, want 3 and each signal once:\n%s", exit, seen)
	}
	r.clean()
}

// If run is killed, its command dies with it, and the next run deletes the attachment.
func TestKernelRunKilled(t *testing.T) {
	kerneltest.Slow(t)
	r := newRunner(t)
	cmd, _ := r.start("sh", "-c", "echo $$ >"+r.Path("pid")+"; exec sleep 60")
	var pid []byte
	kerneltest.Until(t, "a command", func() bool {
		pid, _ = os.ReadFile(r.Path("pid"))
		return bytes.HasSuffix(pid, []byte("\n"))
	})
	cmd.Process.Kill()
	cmd.Wait()
	kerneltest.Until(t, "the end of the command", func() bool {
		stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/stat")
		return err != nil || bytes.Contains(stat, []byte(") Z "))
	})
	if !r.attached() {
		t.Fatal("the killed run left nothing: there is nothing to test")
	}
	next, out := r.start("true")
	if err := next.Wait(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	r.clean()
}
