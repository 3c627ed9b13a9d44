package applet

import (
	"errors"

	"golang.org/x/sys/unix"

	"cnibox/spec"
)

// addDescriptors is more than any ADD has open at a time, with its delegates and its undo. Together
// with those of a started process it is below 64, above which the kernel needs some 10 ms for a
// bigger table.
const addDescriptors = 32

// CheckLimits checks, before the first change, that ADD and its undo have the descriptors and threads
// that they may need.
func (p Process) CheckLimits() error {
	if err := checkTasks(p.Threads); err != nil {
		return err
	}
	return checkDescriptors()
}

// checkDescriptors reports, before the first change, that ADD or its undo would run out of file
// descriptors. The limit is the process's own, so descriptors that are free now stay free. Errors
// have code 5. Without the check, Go's runtime would end the process if it gets no descriptor for
// the first timer.
func checkDescriptors() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return spec.Errorf(spec.CodeIO, "limit of file descriptors: %w", err)
	}
	// one poll(2) reports which of many descriptors are not open
	var group [2 * addDescriptors]unix.PollFd
	free := 0
	for first := uint64(0); free < addDescriptors && first < limit.Cur; first += uint64(len(group)) {
		fds := group[:min(uint64(len(group)), limit.Cur-first)]
		for i := range fds {
			fds[i] = unix.PollFd{Fd: int32(first) + int32(i)}
		}
		_, err := unix.Poll(fds, 0)
		for errors.Is(err, unix.EINTR) { // a signal of Go's scheduler
			_, err = unix.Poll(fds, 0)
		}
		if err != nil {
			return spec.Errorf(spec.CodeIO, "look for free file descriptors: %w", err)
		}
		for _, fd := range fds {
			if fd.Revents&unix.POLLNVAL != 0 {
				free++
			}
		}
	}
	if free < addDescriptors {
		return spec.Errorf(spec.CodeIO, "ADD needs %d file descriptors, and %d are left: raise the limit (ulimit -n, LimitNOFILE= of systemd): %w",
			addDescriptors, free, unix.EMFILE)
	}
	return nil
}
