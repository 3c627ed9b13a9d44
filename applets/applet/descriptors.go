package applet

import (
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/spec"
)

// addDescriptors is more than any ADD has open at a time, with its delegates and its undo. Together
// with those of a started process it is below 64, above which the kernel needs some 10 ms for a
// bigger table.
const addDescriptors = 32

// CheckLimits checks, before the first change, that ADD and its undo have the file descriptors that
// they may need. Errors have code 5.
func (Process) CheckLimits() error {
	fd, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	for range addDescriptors - 1 { // of one file: opening each takes four times as long
		if err != nil {
			break
		}
		defer unix.Close(fd)
		fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	}
	if err != nil {
		return spec.Errorf(spec.CodeIO, "ADD needs %d file descriptors: raise the limit (ulimit -n, LimitNOFILE= of systemd): %w", addDescriptors, err)
	}
	unix.Close(fd)
	return nil
}
