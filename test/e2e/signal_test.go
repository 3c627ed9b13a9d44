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

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/spec"
)

// waiting reports whether a thread of the process waits in poll(2), where the serve loop waits for
// its configuration.
func waiting(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/wchan", pid))
	return slices.ContainsFunc(threads, func(thread string) bool {
		b, err := os.ReadFile(thread)
		return err == nil && strings.Contains(string(b), "poll")
	})
}

// terminated starts a plugin, sends it SIGTERM while it waits for its configuration, and returns
// its exit code and stdout; -1 if the signal ended it.
func terminated(t *testing.T, plugin string, verb spec.Verb) (code int, stdout string) {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(plugin)
	cmd.Env = []string{"CNI_COMMAND=" + string(verb), "CNI_CONTAINERID=ctr1", "CNI_NETNS=/nowhere", "CNI_IFNAME=eth0"}
	cmd.Stdout = &out
	stdin, err := cmd.StdinPipe() // open and idle
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	kerneltest.Until(t, "a plugin that awaits its configuration", func() bool { return waiting(cmd.Process.Pid) })
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	stuck := time.AfterFunc(processTime, func() { cmd.Process.Kill() })
	defer stuck.Stop()
	cmd.Wait()
	return cmd.ProcessState.ExitCode(), out.String()
}
