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

// Go's runtime ends a process that cannot start a thread. So ADD begins only if leastTasks more
// threads and processes are allowed, for itself and a plugin that it starts. If fewer than fewTasks
// are allowed, it starts its threads first.
const (
	leastTasks = 8
	fewTasks   = 48
)

// roomyNproc is a limit of a user's tasks above which the tasks are not counted: counting reads an
// entry of each process.
const roomyNproc = 4096

// checkTasks reports, before the first change, that too few threads and processes are allowed, and
// calls reserve if only a few are. Errors have code 11: others may end soon.
//
// It uses prlimit(2) and the limit of the process's own control group, which takes 0.01 ms. It does
// not check the limits of the groups above: DEL cleans up after an ADD that ends there.
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

// userTasks returns how many tasks RLIMIT_NPROC still allows, and how to raise it. Like the kernel
// it exempts root and processes with CAP_SYS_RESOURCE or CAP_SYS_ADMIN, but only in the initial
// user namespace.
// namespace.
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

// firstUserNS reports whether the process is in the initial user namespace.
func firstUserNS() bool {
	const first = 0xEFFFFFFD // PROC_USER_INIT_INO, include/linux/proc_ns.h
	var st unix.Stat_t
	return unix.Stat("/proc/self/ns/user", &st) == nil && st.Ino == first
}

// mayExceed reports whether a capability lets the process exceed its limits.
func mayExceed() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData // this version has 64 bits
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
			n += int(st.Nlink) - 2 // a directory has two links, and one for each subdirectory
		}
	}
	return n
}

// groupTasks returns how many tasks the process's control group still allows, and how to raise its
// limit. The file list has the groups of all hierarchies, which are below root.
func groupTasks(list, root string) (left int, limit string) {
	var b [4096]byte // a longer list is not useful: it has none of these controllers, or too many
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
	// The root group does not have this file, and "max" means no limit.
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

// readInto reads the beginning of a small kernel file into b; empty: it cannot be read.
func readInto(b []byte, path string) []byte {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	n, _ := unix.Read(fd, b)
	return b[:max(n, 0)]
}
