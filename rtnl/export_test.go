package rtnl

import "golang.org/x/sys/unix"

// Listen is listen for the tests.
var Listen = (*Conn).listen

// Replace puts another socket in the place of a Conn's.
func Replace(c *Conn, fd int) error {
	return c.c.Within(func(old int) error { return unix.Dup3(fd, old, unix.O_CLOEXEC) })
}
