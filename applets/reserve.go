package applets

import (
	"golang.org/x/sys/unix"

	"cnibox/spec"
)

// addDescriptors is more than any ADD has open at a time, with its delegates and its undo.
// Together with what a process begins with it stays below 64, from where on the kernel
// has to make a bigger table, for which it waits some 10 ms.
const addDescriptors = 32

// ready makes sure, before the first change, that ADD and its undo have what a process can
// run out of.
func (p Process) ready() error {
	if p.Threads != nil {
		p.Threads()
	}
	return checkDescriptors()
}

// checkDescriptors reports, before the first change, that ADD or its undo would run out of
// file descriptors. The limit is the process's own, so those that are free now stay free.
// Errors have code 5; later on, Go's runtime would end the process where it gets none for
// the first timer.
func checkDescriptors() error {
	free := make([]int, 0, addDescriptors)
	defer func() {
		for _, fd := range free {
			unix.Close(fd)
		}
	}()
	for len(free) < addDescriptors {
		var fd int
		var err error
		if len(free) == 0 {
			fd, err = unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
		} else {
			fd, err = unix.FcntlInt(uintptr(free[0]), unix.F_DUPFD_CLOEXEC, 0)
		}
		if err != nil {
			return spec.Errorf(spec.CodeIO, "ADD needs %d file descriptors, and %d are left: raise the limit (ulimit -n, LimitNOFILE= of systemd): %w",
				addDescriptors, len(free), err)
		}
		free = append(free, fd)
	}
	return nil
}
