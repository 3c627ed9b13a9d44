package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// waiting reports whether a thread of a process waits in poll(2), which is where the
// serve loop awaits its configuration.
func waiting(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/wchan", pid))
	return slices.ContainsFunc(threads, func(thread string) bool {
		b, err := os.ReadFile(thread)
		return err == nil && strings.Contains(string(b), "poll")
	})
}

// TestSignal sends SIGTERM to a plugin that awaits its configuration: it ends
// with an error that the runtime can read. The signal is taken beside main, so
// one that comes too early may kill: then the test tries again, and leaves more time.
func TestSignal(t *testing.T) {
	link := filepath.Join(t.TempDir(), "loopback")
	self, err := os.Executable()
	if err == nil {
		err = os.Symlink(self, link)
	}
	if err != nil {
		t.Fatal(err)
	}
	for more := time.Duration(0); more < 10*time.Second; more = 2*more + time.Millisecond {
		if code, out := terminated(t, link, more); code == 1 {
			if !strings.Contains(out, `"code": 5`) || !strings.Contains(out, "context canceled") {
				t.Errorf("got %s", out)
			}
			return
		}
	}
	t.Error("the plugin was killed each time")
}

// terminated starts a plugin, sends it SIGTERM when it has waited for a while more, and
// returns what it answered; -1 if it was killed.
func terminated(t *testing.T, plugin string, more time.Duration) (code int, stdout string) {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(plugin)
	cmd.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=ctr1", "CNI_NETNS=/nowhere", "CNI_IFNAME=eth0"}
	cmd.Stdout = &out
	stdin, err := cmd.StdinPipe() // silent and open
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	for end := time.Now().Add(time.Second); time.Now().Before(end) && !waiting(cmd.Process.Pid); {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(more)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	stuck := time.AfterFunc(processTime, func() { cmd.Process.Kill() })
	defer stuck.Stop()
	cmd.Wait()
	return cmd.ProcessState.ExitCode(), out.String()
}
