//go:build !no_dhcp

package applets

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/dhcp"
	"cnibox/internal/json"
	"cnibox/spec"
)

// Plugin and daemon speak over a unix stream socket, one call a connection. Either side
// sends dhcpMagic, four bytes of length (big endian), and a JSON object: the plugin a
// dhcpCall, the daemon a dhcpAnswer. The daemon sends its dhcpMagic as soon as it has read
// the other's, so a plugin knows at once that somebody is there to wait for. The reference
// speaks Go's net/rpc over HTTP there; each side knows the stranger by its first bytes, and
// says so.
const (
	dhcpMagic   = "cnibox-dhcp 1\n"
	dhcpFamily  = "cnibox-dhcp " // of any version
	longestCall = 1 << 20        // bytes of JSON
)

// A dhcpCall asks for a verb of an attachment. Only ADD needs the configuration.
type dhcpCall struct {
	Verb spec.Verb `json:"verb"`
	recordOwner
	Config dhcp.Config `json:"config"`
}

// A dhcpAnswer has an error, or the leases for verbs that have some.
type dhcpAnswer struct {
	Error  *spec.Error   `json:"error,omitempty"`
	Leases []*dhcp.Lease `json:"leases,omitempty"`
}

// errNoDaemon is about a socket at which no daemon of ours answers.
var errNoDaemon = errors.New("no DHCP daemon")

// errHangs is about one that is there and says nothing.
var errHangs = errors.New("what listens there is stopped or hangs: restart `cnibox dhcp daemon`")

// noDaemon is errNoDaemon with what it does not do, and why.
func noDaemon(does, socket string, err error) error {
	return fmt.Errorf("%w %s at %s: %w", errNoDaemon, does, socket, err)
}

// dhcpPatience is how long an answer is waited for that needs no server.
const dhcpPatience = 5 * time.Second

// callDHCP asks the daemon at a socket. The error is errNoDaemon if there is none, or
// one of another make; what the daemon says keeps its code. An ADD waits as long as the
// daemon does, once it has shown that it is there.
func callDHCP(ctx context.Context, socket string, call *dhcpCall) ([]*dhcp.Lease, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	patience := time.AfterFunc(dhcpPatience, func() { cancel(errHangs) })
	defer patience.Stop()
	conn, err := dialUnix(socket)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		err = fmt.Errorf("start it with `cnibox dhcp daemon` (%w)", err)
	}
	if err != nil {
		return nil, noDaemon("listens", socket, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var answer dhcpAnswer
	if err = sendDHCP(conn, dhcpMagic, call); err == nil {
		err = greetDHCP(conn)
	}
	if call.Verb == spec.Add {
		patience.Stop()
	}
	if err == nil {
		err = receiveDHCP(conn, &answer)
	}
	switch {
	case ctx.Err() != nil:
		return nil, noDaemon("answered in time", socket, context.Cause(ctx))
	case err != nil:
		return nil, noDaemon("answers", socket, err)
	case answer.Error != nil:
		return nil, answer.Error
	}
	return answer.Leases, nil
}

// dialUnix connects to a stream socket. A full queue is an error and not waited for.
func dialUnix(path string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("connect", err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// sendDHCP writes one message; head is dhcpMagic, or nothing for one who has said it.
func sendDHCP(w io.Writer, head string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32([]byte(head), uint32(len(b))), b...))
	return err
}

// A strangerError is what the other end began with instead of dhcpMagic.
type strangerError string

// Error says what the other end seems to be, and what to do about it.
func (e strangerError) Error() string {
	switch {
	case strings.HasPrefix(string(e), "HTTP/"):
		return "the daemon there is the reference plugin's, which speaks Go RPC: stop it and start `cnibox dhcp daemon`"
	case strings.HasPrefix(string(e), dhcpFamily):
		return "plugin and daemon are cnibox of different versions: restart the daemon"
	}
	return fmt.Sprintf("what is there is no DHCP daemon of cnibox: it says %q", string(e))
}

// greetDHCP reads what the other end begins with; a strangerError tells that it is none of
// ours.
func greetDHCP(r io.Reader) error {
	head := make([]byte, len(dhcpMagic))
	n, err := io.ReadFull(r, head)
	if n > 0 && !strings.HasPrefix(dhcpMagic, string(head[:n])) {
		return strangerError(head[:n])
	}
	return hungUp(err)
}

// hungUp says in plain words that the other end is gone.
func hungUp(err error) error {
	if err == io.EOF || errors.Is(err, syscall.ECONNRESET) {
		return errors.New("it hung up")
	}
	return err
}

// receiveDHCP reads one message behind the greeting.
func receiveDHCP(r io.Reader, v any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return hungUp(err)
	}
	length := binary.BigEndian.Uint32(head[:])
	if length > longestCall {
		return fmt.Errorf("a message of %d bytes", length)
	}
	b, err := io.ReadAll(io.LimitReader(r, int64(length)))
	switch {
	case err != nil:
		return err
	case len(b) < int(length):
		return errors.New("it hung up in the midst of a message")
	}
	return json.Unmarshal(b, v)
}
