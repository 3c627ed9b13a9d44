// Package dbus calls methods and receives signals over the system bus. It has the part of D-Bus that
// firewalld needs: arguments are strings, answers are booleans, and errors have a name. It follows
// https://dbus.freedesktop.org/doc/dbus-specification.html.
package dbus

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// SystemBus is the default socket of the system bus.
const SystemBus = "/run/dbus/system_bus_socket"

// timeout bounds connecting and all calls together. firewalld does not answer while it reloads, which
// takes seconds, and more than 20 on a slow machine.
const timeout = time.Minute

// A Method identifies a method of a remote object.
type Method struct{ Service, Path, Interface, Name string }

// An Error is an error reply.
type Error struct {
	Name    string // "org.freedesktop.DBus.Error.ServiceUnknown"
	Message string // of firewalld: begins with the name of its error
}

// Error returns the message, or the name if there is none.
func (e *Error) Error() string {
	if e.Message == "" {
		return e.Name
	}
	return e.Message
}

// A Conn is a connection to a message bus. It is for one goroutine.
type Conn struct {
	ctx      context.Context
	fd       int
	deadline time.Time // zero: none, and wait does not poll ctx
	serial   uint32
	in       []byte // received, not decoded yet
}

// Dial connects to the bus at the first of the Unix sockets on which one listens; a name that begins
// with "@" is an abstract socket. The error is os.ErrNotExist or unix.ECONNREFUSED if no bus listens on
// any of them. Calls fail after ctx has ended, and a minute after Dial, whatever else the bus sends.
func Dial(ctx context.Context, sockets ...string) (c *Conn, err error) {
	err = os.ErrNotExist
	deadline := time.Now().Add(timeout)
	for _, socket := range sockets {
		c, failed := dial(ctx, socket, deadline)
		if failed == nil {
			return c, nil
		}
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
			err = failed
		}
	}
	return nil, err
}

func dial(ctx context.Context, socket string, deadline time.Time) (*Conn, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	c := &Conn{ctx: ctx, fd: fd, deadline: deadline}
	if err := c.begin(socket); err != nil {
		c.Close()
		return nil, fmt.Errorf("D-Bus at %s: %w", socket, err)
	}
	return c, nil
}

// Close ends the connection.
func (c *Conn) Close() { unix.Close(c.fd) }

// begin connects, authenticates and requests a name, without which the bus forwards nothing.
func (c *Conn) begin(path string) error {
	// For a bus that accepts no connection; 0 would be no limit.
	limit := unix.NsecToTimeval(int64(max(time.Until(c.deadline), time.Millisecond)))
	if err := unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Connect(c.fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return os.NewSyscallError("connect", err)
	}
	uid := hex.EncodeToString([]byte(strconv.Itoa(os.Geteuid())))
	if err := c.send([]byte("\x00AUTH EXTERNAL " + uid + "\r\n")); err != nil {
		return err
	}
	line, err := c.line()
	if err != nil {
		return err
	}
	if len(line) < 3 || line[:3] != "OK " {
		return fmt.Errorf("the bus refuses user %d: %q", os.Geteuid(), line)
	}
	if err := c.send([]byte("BEGIN\r\n")); err != nil {
		return err
	}
	const bus = "org.freedesktop.DBus"
	_, err = c.call(Method{bus, "/org/freedesktop/DBus", bus, "Hello"}, nil)
	return err
}

// Call calls a method and ignores the content of its answer. An error reply is returned as an *[Error].
// The bus starts no service for the call.
func (c *Conn) Call(m Method, args ...string) error {
	_, err := c.call(m, args)
	return err
}

// Ask calls a method that answers with a boolean.
func (c *Conn) Ask(m Method, args ...string) (bool, error) {
	answer, err := c.call(m, args)
	if err != nil {
		return false, err
	}
	return answer.truth()
}

// call sends a method call and waits for the reply to it. It skips signals and other messages.
func (c *Conn) call(m Method, args []string) (*message, error) {
	c.serial++
	if err := c.send(call(c.serial, m, args)); err != nil {
		return nil, err
	}
	for {
		answer, err := c.next()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.Name, err)
		}
		switch {
		case answer.reply != c.serial:
		case answer.typ == typeReturn:
			return answer, nil
		case answer.typ == typeError:
			return nil, &Error{answer.errorName, answer.text()}
		}
	}
}

// Listen requests the signals that match any of the rules: see "Match Rules" of the specification.
// Afterwards the connection is for [Conn.Signal] only, and has no time limit.
func (c *Conn) Listen(rules ...string) error {
	const bus = "org.freedesktop.DBus"
	for _, rule := range rules {
		if err := c.Call(Method{bus, "/org/freedesktop/DBus", bus, "AddMatch"}, rule); err != nil {
			return err
		}
	}
	c.deadline = time.Time{}
	return nil
}

// Signal waits for the next signal and returns its name, and its arguments if they are strings.
// The error is that of the context of [Dial] when this ends.
func (c *Conn) Signal() (name string, args []string, err error) {
	stop := context.AfterFunc(c.ctx, func() { _ = unix.Shutdown(c.fd, unix.SHUT_RDWR) }) // reading ends then
	defer stop()
	for {
		m, err := c.next()
		switch {
		case c.ctx.Err() != nil:
			return "", nil, c.ctx.Err()
		case err != nil:
			return "", nil, err
		case m.typ == typeSignal:
			return m.member, m.texts(), nil
		}
	}
}

// send writes all bytes. The error is EPIPE if the bus has closed the connection.
func (c *Conn) send(b []byte) error {
	for len(b) > 0 {
		if err := c.wait(unix.POLLOUT); err != nil {
			return err
		}
		n, err := unix.SendmsgN(c.fd, b, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if err == unix.EAGAIN || err == unix.EINTR {
			continue
		}
		if err != nil {
			return os.NewSyscallError("write", err)
		}
		b = b[n:]
	}
	return nil
}

func (c *Conn) next() (*message, error) {
	if err := c.fill(fixedLen); err != nil {
		return nil, err
	}
	_, length, err := sizes(c.in)
	if err != nil {
		return nil, err
	}
	if err := c.fill(length); err != nil {
		return nil, err
	}
	m, err := decode(append([]byte(nil), c.in[:length]...))
	c.in = c.in[length:]
	return m, err
}

// line reads a line and returns it without its CR LF.
func (c *Conn) line() (string, error) {
	for at := 0; ; at++ {
		if err := c.fill(at + 2); err != nil {
			return "", err
		}
		if c.in[at] == '\r' && c.in[at+1] == '\n' {
			line := string(c.in[:at])
			c.in = c.in[at+2:]
			return line, nil
		}
		if at == longest {
			return "", errMalformed
		}
	}
}

// wait waits until the socket is ready. With a deadline it checks the context ten times a second, and
// fails at the deadline even if the socket is always ready.
func (c *Conn) wait(events int16) error {
	pause := 100 // ms
	if c.deadline.IsZero() {
		pause = -1
	}
	for {
		ready := []unix.PollFd{{Fd: int32(c.fd), Events: events}}
		n, err := unix.Poll(ready, pause)
		switch {
		case c.ctx.Err() != nil:
			return c.ctx.Err()
		case err != nil && err != unix.EINTR:
			return os.NewSyscallError("poll", err)
		case !c.deadline.IsZero() && time.Now().After(c.deadline):
			return fmt.Errorf("no answer in %.0f s", timeout.Seconds())
		case n > 0:
			return nil
		}
	}
}

// fill reads until c.in has n bytes.
func (c *Conn) fill(n int) error {
	for len(c.in) < n {
		if err := c.wait(unix.POLLIN); err != nil {
			return err
		}
		b := make([]byte, 4096)
		k, err := unix.Read(c.fd, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return os.NewSyscallError("read", err)
		}
		if k == 0 {
			return fmt.Errorf("the bus has closed the connection: %w", unix.ECONNRESET)
		}
		c.in = append(c.in, b[:k]...)
	}
	return nil
}
