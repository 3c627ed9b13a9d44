package cniexec

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/cnibox/cnibox/spec"
)

// A process that was started after the hook is not that of the container, which its state names.
func TestStartOf(t *testing.T) {
	if ticks, err := startOf(os.Getpid()); err != nil || ticks == 0 {
		t.Errorf("own process: %d, %v", ticks, err)
	}
	if _, err := startOf(1 << 30); spec.AsError(err).Code != spec.CodeNetNS {
		t.Errorf("no such process: %v", err)
	}
	for {
		cmd := exec.Command("sleep", "60")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_, err := startOf(cmd.Process.Pid)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if err != nil {
			if spec.AsError(err).Code != spec.CodeNetNS {
				t.Error(err)
			}
			break
		}
		<-time.After(time.Millisecond) // of the same clock tick, which has 10 ms
	}
}
