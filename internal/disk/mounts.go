package disk

import (
	"cmp"
	"strconv"
	"strings"
)

// A Mount is a mount in a mount namespace.
type Mount struct {
	Root  string // path of its root in the file system; of a namespace, net:[4026531840] or the like
	Point string // path of the mount point
}

// Mounts returns the mounts that a process or a thread sees, in the order of proc_pid_mountinfo(5).
// dir is its directory in /proc; empty: the calling thread's. Mount points are below its root.
func Mounts(dir string) (mounts []Mount, err error) {
	const longest = 16 << 20 // bytes
	b, err := Read(cmp.Or(dir, "/proc/thread-self")+"/mountinfo", 0, longest)
	for line := range strings.Lines(string(b)) {
		words := strings.Fields(line)
		if len(words) < 5 {
			continue
		}
		if point, err := strconv.Unquote(`"` + words[4] + `"`); err == nil { // \040 is a space
			mounts = append(mounts, Mount{words[3], point})
		}
	}
	return mounts, err
}
