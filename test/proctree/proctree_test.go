package proctree_test

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/test/proctree"
)

// A process that made a session of its own and ignores SIGTERM ends with the tree, and so do its children;
// an orphan is reaped.
func TestKill(t *testing.T) {
	tree, err := proctree.New()
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := exec.Command("sh", "-c", `setsid sh -c 'trap "" TERM; sleep 1000 & echo $! $$; wait; wait' & exit 3`)
	cmd.Stdout = w
	done, err := tree.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	if code := <-done; code != 3 {
		t.Errorf("exit code %d, want 3", code)
	}
	line := make([]byte, 64)
	n, err := r.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	if names := tree.Kill(0); len(names) != 2 {
		t.Errorf("killed %q, want two processes", names)
	}
	for field := range strings.FieldsSeq(string(line[:n])) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Kill(pid, 0); err != nil && !errors.Is(err, unix.ESRCH) || err == nil && !zombie(pid) {
			t.Errorf("process %d is alive: %v", pid, err)
		}
	}
}

func zombie(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || strings.Contains(string(text), ") Z ")
}
