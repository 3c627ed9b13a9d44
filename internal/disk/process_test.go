package disk

import (
	"runtime"
	"strconv"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The name of a program may look like the fields behind it.
func TestProcessStat(t *testing.T) {
	runtime.LockOSThread() // for good: the thread ends with the test
	name := []byte("a) Z (1\x00")
	if err := unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&name[0])), 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	fields, err := ProcessStat("/proc/thread-self")
	if err != nil || fields[1] != strconv.Itoa(unix.Gettid()) || fields[2] != "a) Z (1" || fields[3] != "R" {
		t.Errorf("got %q, %v", fields, err)
	}
	if _, err := ProcessStat("/proc/0"); err == nil {
		t.Error("a process that does not exist has fields")
	}
}
