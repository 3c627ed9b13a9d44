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

// Wait returns when there was a notification, or when the receive buffer overflowed. The
// notification is dropped: the caller reads the state anew. The error is the context's if
// that ends first.
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

// Notified returns the messages of the next notification as soon as there is one; lost reports
// that the receive buffer overflowed, and that some were dropped. The error is the context's if
// that ends first.
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
	if err := c.readable(wake); err != nil {
		return nil, false, err
	}
	if ctx.Err() != nil {
		return nil, false, ctx.Err()
	}
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

// readable returns when there is something to read from the socket or from other.
func (c *Conn) readable(other int) error {
	if c.fd < 0 {
		return os.ErrClosed
	}
	fds := []unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLIN}, {Fd: int32(other), Events: unix.POLLIN}}
	_, err := retry(func() (int, error) { return unix.Poll(fds, -1) })
	return os.NewSyscallError("poll", err)
}
