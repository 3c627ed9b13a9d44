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

// cgroupRoot is where the hierarchies are (version 1), or the one (version 2).
const cgroupRoot = "/sys/fs/cgroup"

// RemoveCgroup removes a control group from each hierarchy, inner ones first. They
// have no processes any more, and only empty ones can be removed.
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

// RemoveOldCgroups removes what runs left that were killed. A group's name is the prefix
// and the ID of a process.
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
