package cniexec

import (
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// freeMemory gives back what this process has in memory and does not need while it waits for a
// command: its heap, and the pages of its own file, which the kernel reads again (from its
// cache) where one is needed.
func freeMemory() {
	runtime.GC()
	debug.FreeOSMemory()
	b, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return
	}
	for _, m := range cleanMappings(string(b)) {
		// MADV_DONTNEED: what was never written is read from the file again.
		unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_DONTNEED)
	}
}

// A mapping is a range of addresses.
type mapping struct{ start, end uintptr }

// cleanMappings returns those of files, out of the text of proc_pid_smaps(5), that cannot be
// written and of which no page was: a program that is relocated when it starts, has such.
func cleanMappings(smaps string) (clean []mapping) {
	var m mapping
	file := false
	for line := range strings.Lines(smaps) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case !strings.HasSuffix(words[0], ":"): // ADDRESSES MODE OFFSET DEVICE INODE [FILE]
			file = len(words) >= 6 && strings.HasPrefix(words[5], "/") && !strings.Contains(words[1], "w")
			start, end, _ := strings.Cut(words[0], "-")
			var errs [2]error
			m.start, errs[0] = parseHex(start)
			m.end, errs[1] = parseHex(end)
			file = file && errs == [2]error{}
		case words[0] == "Anonymous:" && len(words) > 1 && words[1] == "0" && file:
			clean = append(clean, m)
		}
	}
	return clean
}

// parseHex reads an address.
func parseHex(s string) (uintptr, error) {
	n, err := strconv.ParseUint(s, 16, strconv.IntSize)
	return uintptr(n), err
}
