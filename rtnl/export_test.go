package rtnl

import "golang.org/x/sys/unix"

// Listen exports listen for the tests.
var Listen = (*Conn).listen

// Replace replaces the socket of a Conn.
func Replace(c *Conn, fd int) error {
	return c.c.Within(func(old int) error { return unix.Dup3(fd, old, unix.O_CLOEXEC) })
}
