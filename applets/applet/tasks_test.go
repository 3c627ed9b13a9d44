package applet

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cnibox/internal/kerneltest"
	"cnibox/spec"
)

// The cgroup of the process is that of the pids controller, in the v1 or the v2 hierarchy.
func TestTasksOfCgroup(t *testing.T) {
	const v1 = "9:name=systemd:/a\n8:cpu,cpuacct:/b\n7:pids:/c/d\n0::/e\n"
	for _, c := range []struct {
		name, groups, dir, most string
		want                    int
	}{
		{"version 2", "0::/e\n", "e", "20\n", 15},
		{"the group of a namespace", "0::/\n", "", "20\n", 15},
		{"version 1", v1, "pids/c/d", "20\n", 15},
		{"version 1, with the name in the other hierarchy", v1, "e", "20\n", math.MaxInt},
		{"more than the limit", "0::/e\n", "e", "4\n", -1},
		{"no limit", "0::/e\n", "e", "max\n", math.MaxInt},
		{"no such file", "0::/e\n", "e", "", math.MaxInt},
		{"no controller", "3:cpu:/e\n", "e", "20\n", math.MaxInt},
		{"a name that looks like one", "1:name=x:/y:pids:/e\n", "pids/e", "20\n", math.MaxInt},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			write := func(name, text string) {
				t.Helper()
				err := os.MkdirAll(filepath.Dir(name), 0o755)
				if err == nil {
					err = os.WriteFile(name, []byte(text), 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			list := filepath.Join(root, "list")
			write(list, c.groups)
			write(filepath.Join(root, c.dir, "pids.current"), "5\n")
			if c.most != "" {
				write(filepath.Join(root, c.dir, "pids.max"), c.most)
			}
			left, limit := groupTasks(list, root)
			if left != c.want || left < math.MaxInt && !strings.Contains(limit, filepath.Join(root, c.dir, "pids.max")) {
				t.Errorf("got %d, %q, want %d", left, limit, c.want)
			}
		})
	}
}

// asUser is the variable with the RLIMIT_NPROC of the process that prints the outcome of
// checkTasks.
const asUser = "CNIBOX_TEST_TASKS"

func TestMain(m *testing.M) {
	limit, err := strconv.ParseUint(os.Getenv(asUser), 10, 64)
	if err != nil {
		os.Exit(m.Run())
	}
	if err := unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		panic(err)
	}
	code, reserved := 0, false
	if err := checkTasks(func() { reserved = true }); err != nil {
		code = spec.AsError(err).Code
	}
	fmt.Print(code, reserved)
}

// RLIMIT_NPROC limits ordinary users: if it leaves few tasks, threads are reserved; if too few, ADD
// returns code 11.
func TestKernelUserTasksLimited(t *testing.T) {
	kerneltest.Slow(t)
	if os.Getuid() != 0 || !firstUserNS() {
		t.Skip("SKIPPED: only root may start a process of another user")
	}
	const user = 61234 // without other processes
	for _, c := range []struct {
		uid, limit uint64
		want       string
	}{
		{user, roomyNproc, "0 false"},
		{user, 200, "0 false"},
		{user, 30, "0 true"},
		{user, 9, "11 false"}, // an ADD may need 8, and a process has two at least
		{0, 12, "0 false"},
	} {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", asUser, c.limit))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(c.uid), Gid: uint32(c.uid)}}
		out, err := cmd.Output()
		if err != nil || string(out) != c.want {
			t.Errorf("%+v: got %q, %v", c, out, err)
		}
	}
}
