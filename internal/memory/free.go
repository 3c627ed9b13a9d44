package memory

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// CollectLess makes the garbage collector run less often in a verb that reads much and ends: what
// it reads of 1,000 attachments is some 20 MB, which is gone with the process. Collecting it as
// usual takes a quarter of the time. restore ends that.
func CollectLess() (restore func()) {
	usual := debug.SetGCPercent(400)
	return func() { debug.SetGCPercent(usual) }
}

// Free gives back what this process has in memory and does not need while it waits, for a
// command or an event. Twice, since the first collection leaves what pools have.
func Free() {
	runtime.GC()
	debug.FreeOSMemory()
	dropPages()
}

// dropPages gives back the pages of this program's own file. The kernel maps those again, from its
// cache, where one is needed.
func dropPages() {
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return
	}
	var clean [][2]uintptr
	eachCleanMapping(f, func(start, end uintptr) { clean = append(clean, [2]uintptr{start, end}) })
	f.Close()
	for _, m := range slices.Backward(clean) { // the code, which this needs itself, is the first
		// MADV_DONTNEED: what was never written is read from the file again.
		unix.Syscall(unix.SYS_MADVISE, m[0], m[1]-m[0], unix.MADV_DONTNEED)
	}
}

// eachCleanMapping calls fn for the mappings of files, in the text of proc_pid_smaps(5), that
// cannot be written and of which no page was: a program that is relocated when it starts has
// such.
func eachCleanMapping(smaps io.Reader, fn func(start, end uintptr)) {
	var start, end uintptr
	file := false
	for lines := bufio.NewScanner(smaps); lines.Scan(); {
		line := lines.Bytes()
		if from, size, ok := bytes.Cut(line, []byte("Anonymous:")); ok && len(from) == 0 {
			if size, _ = bytes.CutSuffix(size, []byte(" kB")); file && string(bytes.TrimSpace(size)) == "0" {
				fn(start, end)
			}
			continue
		}
		// ADDRESSES MODE OFFSET DEVICE INODE [FILE]
		addresses, rest, _ := bytes.Cut(line, []byte(" "))
		from, to, ok := bytes.Cut(addresses, []byte("-"))
		if !ok {
			continue
		}
		var errs [2]error
		start, errs[0] = parseHex(from)
		end, errs[1] = parseHex(to)
		file = errs == [2]error{} && len(rest) > 1 && rest[1] == '-' && bytes.Contains(rest, []byte(" /"))
	}
}

// parseHex reads an address.
func parseHex(s []byte) (uintptr, error) {
	n, err := strconv.ParseUint(string(s), 16, strconv.IntSize)
	return uintptr(n), err
}
