package sandbox

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// cgroupRoot is the mount point of the hierarchy (version 2), or the directory of the hierarchies
// (version 1).
const cgroupRoot = "/sys/fs/cgroup"

// RemoveCgroup removes a control group from each hierarchy, nested ones first. They must have no
// processes.
func RemoveCgroup(name string) {
	for _, pattern := range []string{name, "*/" + name} {
		found, _ := filepath.Glob(filepath.Join(cgroupRoot, pattern)) // the pattern is well formed
		for _, top := range found {
			var groups []string
			filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					groups = append(groups, path)
				}
				return nil
			})
			for _, dir := range slices.Backward(groups) {
				unix.Rmdir(dir)
			}
		}
	}
}

// RemoveOldCgroups removes the groups of runs that were killed. A group's name is the prefix and a
// process ID.
func RemoveOldCgroups(prefix string) {
	for _, level := range []string{"", "*"} {
		found, _ := filepath.Glob(filepath.Join(cgroupRoot, level, prefix+"*"))
		for _, dir := range found {
			name := filepath.Base(dir)
			pid, err := strconv.Atoi(strings.TrimPrefix(name, prefix))
			if err == nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
				RemoveCgroup(name)
			}
		}
	}
}
