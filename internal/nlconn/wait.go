package nlconn

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Wait waits for a notification, or for an overflow of the receive buffer. It drops the notification:
// the caller reads the state again. The error is the context's if that ends first.
func (c *Conn) Wait(ctx context.Context) error {
	_, _, err := c.Notified(ctx)
	return err
}

// ReceiveSpace makes the receive buffer of the socket larger, for bursts of notifications:
// without limit with CAP_NET_ADMIN on the host, else up to net.core.rmem_max.
func (c *Conn) ReceiveSpace(bytes int) {
	_ = c.Within(func(fd int) error {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bytes) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, bytes)
		}
		return nil
	})
}

// Notified waits for a notification and returns its messages. lost: the receive buffer overflowed, and
// notifications were dropped. The error is the context's if that ends first.
func (c *Conn) Notified(ctx context.Context) (ms []netlink.Message, lost bool, err error) {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, false, os.NewSyscallError("eventfd", err)
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
	if _, err := c.readable(wake, -1); err != nil {
		return nil, false, err
	}
	if ctx.Err() != nil {
		return nil, false, ctx.Err()
	}
	return c.receive()
}

// Pending is [Conn.Notified] without waiting; ms is nil if there is no notification.
func (c *Conn) Pending() (ms []netlink.Message, lost bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n, err := c.readable(-1, 0); n == 0 || err != nil {
		return nil, false, err
	}
	return c.receive()
}

func (c *Conn) receive() (ms []netlink.Message, lost bool, err error) {
	s := borrow(c.fd)
	defer s.putBack()
	ms, err = s.Receive()
	switch {
	case errors.Is(err, unix.ENOBUFS):
		return nil, true, nil
	case err != nil:
		return nil, false, fmt.Errorf("netlink receive: %w", err)
	}
	return ms, false, nil
}

// readable waits until the socket or the descriptor other (-1: none) is readable, or for timeout
// milliseconds (-1: no limit). It returns how many of the two are readable.
func (c *Conn) readable(other, timeout int) (n int, err error) {
	if c.fd < 0 {
		return 0, os.ErrClosed
	}
	fds := []unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLIN}, {Fd: int32(other), Events: unix.POLLIN}}
	n, err = retry(func() (int, error) { return unix.Poll(fds, timeout) })
	return n, os.NewSyscallError("poll", err)
}
