package applet

import (
	"fmt"
	"math"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cnibox/spec"
)

// Go's runtime ends a process that gets no thread. So ADD begins only where leastTasks more
// threads and processes may be made, which are for its own and a plugin that it starts, and
// makes its threads first where fewer than fewTasks may.
const (
	leastTasks = 8
	fewTasks   = 48
)

// roomyNproc is a limit of the tasks of a user that is not compared with what the user has: that
// takes a look at each process.
const roomyNproc = 4096

// checkTasks reports, before the first change, that too few threads and processes may be made, and
// calls reserve where they are few. Errors have code 11: others may end soon.
//
// The look is a prlimit(2) and the limit of the process's own control group, 0.01 ms. What the
// groups above it leave is not looked at: DEL cleans up after an ADD that ended there.
func checkTasks(reserve func()) error {
	left, limit := userTasks()
	if n, at := groupTasks("/proc/self/cgroup", "/sys/fs/cgroup"); n < left {
		left, limit = n, at
	}
	switch {
	case left < leastTasks:
		return spec.Errorf(spec.CodeTryAgain, "ADD needs %d threads and processes, and %d are left: %s: %w", leastTasks, max(left, 0), limit, unix.EAGAIN)
	case left < fewTasks && reserve != nil:
		reserve()
	}
	return nil
}

// userTasks returns how many RLIMIT_NPROC leaves, and how it is raised. As the kernel does, it leaves
// out root and what has CAP_SYS_RESOURCE or CAP_SYS_ADMIN, all in the first user namespace.
func userTasks() (left int, limit string) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NPROC, &r); err != nil || r.Cur >= roomyNproc {
		return math.MaxInt, ""
	}
	uid := unix.Getuid()
	if firstUserNS() && (uid == 0 || mayExceed()) {
		return math.MaxInt, ""
	}
	return int(r.Cur) - tasksOf(uint32(uid)), fmt.Sprintf("raise the limit of user %d, which is %d (ulimit -u, LimitNPROC= of systemd)", uid, r.Cur)
}

// firstUserNS reports whether the process is in the user namespace that the kernel began with.
func firstUserNS() bool {
	const first = 0xEFFFFFFD // PROC_USER_INIT_INO, include/linux/proc_ns.h
	var st unix.Stat_t
	return unix.Stat("/proc/self/ns/user", &st) == nil && st.Ino == first
}

// mayExceed reports whether a capability lets the process exceed its limits.
func mayExceed() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData // that version has 64 bits
	return unix.Capget(&header, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_SYS_RESOURCE|1<<unix.CAP_SYS_ADMIN) != 0
}

// tasksOf counts the threads of a user, as far as /proc shows them.
func tasksOf(uid uint32) (n int) {
	proc, err := os.Open("/proc")
	if err != nil {
		return 0
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1)
	for _, name := range names {
		var st unix.Stat_t
		if _, err := strconv.Atoi(name); err == nil && unix.Stat("/proc/"+name+"/task", &st) == nil && st.Uid == uid {
			n += int(st.Nlink) - 2 // a directory has a link for each one in it, and two more
		}
	}
	return n
}

// groupTasks returns how many the control group of the process leaves, and how its limit is raised.
// The file list has the groups of all hierarchies, which are below root.
func groupTasks(list, root string) (left int, limit string) {
	var b [4096]byte // a longer list has none of our controllers, or too many
	dir := ""
	for line := range strings.Lines(string(readInto(b[:], list))) {
		_, line, _ = strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		switch controllers, at, _ := strings.Cut(line, ":"); {
		case controllers == "pids": // version 1
			dir = path.Join(root, "pids", at)
		case controllers == "" && dir == "": // version 2
			dir = path.Join(root, at)
		}
	}
	if dir == "" {
		return math.MaxInt, ""
	}
	// the topmost group has no such file, and where there is no limit it has the word max
	most, err := strconv.Atoi(strings.TrimSpace(string(readInto(b[:], dir+"/pids.max"))))
	if err != nil {
		return math.MaxInt, ""
	}
	current, err := strconv.Atoi(strings.TrimSpace(string(readInto(b[:], dir+"/pids.current"))))
	if err != nil {
		return math.MaxInt, ""
	}
	return most - current, fmt.Sprintf("raise %s/pids.max, which is %d (TasksMax= of systemd, --pids-limit of a container)", dir, most)
}

// readInto reads the beginning of a small file of the kernel into b; empty: it cannot be read.
func readInto(b []byte, path string) []byte {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	n, _ := unix.Read(fd, b)
	return b[:max(n, 0)]
}
