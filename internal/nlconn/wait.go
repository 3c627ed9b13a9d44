package nlconn

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Wait returns when there was a notification, or when the receive buffer overflowed. The
// notification is dropped: the caller reads the state anew. The error is the context's if
// that ends first.
func (c *Conn) Wait(ctx context.Context) error {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	defer unix.Close(wake)
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(woken)
		_, _ = unix.Write(wake, binary.NativeEndian.AppendUint64(nil, 1)) // an event counter is never full
	})
	defer func() {
		if !stop() {
			<-woken // before its descriptor is closed
		}
	}()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.readable(wake); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if _, err := c.s.Receive(); err != nil && !errors.Is(err, unix.ENOBUFS) {
		return fmt.Errorf("netlink receive: %w", err)
	}
	return nil
}

// readable returns when there is something to read from the socket or from other.
func (c *Conn) readable(other int) error {
	if c.s.fd < 0 {
		return os.ErrClosed
	}
	fds := []unix.PollFd{{Fd: int32(c.s.fd), Events: unix.POLLIN}, {Fd: int32(other), Events: unix.POLLIN}}
	_, err := retry(func() (int, error) { return unix.Poll(fds, -1) })
	return os.NewSyscallError("poll", err)
}
