package dhcp

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"

	"cnibox/applets/record"
	"cnibox/ipam/dhcp"
	"cnibox/spec"
)

// Plugin and daemon talk over a unix stream socket, with one call a connection. The plugin
// sends dhcpMagic, the length of a JSON object (four bytes, big endian) and the object, a
// dhcpCall. The daemon answers with dhcpMagic as soon as it has read that of the plugin, so
// that a plugin does not wait minutes for a lease where no daemon serves the socket, and later
// with length and object of a dhcpAnswer.
const (
	dhcpMagic      = "cnibox-dhcp 1\n" // the number is the protocol's
	maxDHCPMessage = 1 << 20           // bytes of JSON
)

// A dhcpCall is a verb on an attachment. Only ADD needs the configuration.
type dhcpCall struct {
	Verb spec.Verb `json:"verb"`
	record.Owner
	Config dhcp.Config `json:"config"`
}

// A dhcpAnswer has an error, or the leases for verbs that return some.
type dhcpAnswer struct {
	Error  *spec.Error   `json:"error,omitempty"`
	Leases []*dhcp.Lease `json:"leases,omitempty"`
}

var (
	// errNoDaemon is about a socket at which no daemon of ours answers.
	errNoDaemon = errors.New("no DHCP daemon")

	errDHCPHangs = errors.New("what listens there is stopped or hangs: restart `cnibox dhcp daemon`")

	// errDHCPPeer is about the reference, which talks Go's net/rpc over HTTP there, another
	// version of the protocol, and anything else.
	errDHCPPeer = errors.New("dhcp plugin and daemon must both be of this version of cnibox: " +
		"install it as the plugin, and stop the other daemon and start `cnibox dhcp daemon`")
)

// noDaemon wraps errNoDaemon and the cause; verb is what no daemon does at the socket.
func noDaemon(verb, socket string, err error) error {
	return fmt.Errorf("%w %s at %s: %w", errNoDaemon, verb, socket, err)
}

// dhcpAnswerTime bounds the wait for an answer that needs no DHCP server.
const dhcpAnswerTime = 5 * time.Second

// callDHCP calls the daemon at a socket. The error is errNoDaemon if none of ours answers;
// errors of the daemon keep their code. An ADD waits as long as the daemon does, once that has
// sent its magic.
func callDHCP(ctx context.Context, socket string, call *dhcpCall) ([]*dhcp.Lease, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(dhcpAnswerTime, func() { cancel(errDHCPHangs) })
	defer timer.Stop()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socket)
	var errno syscall.Errno
	if errors.As(err, &errno) { // the rest of the error is the path again
		err = errno
	}
	if errno == syscall.ENOENT || errno == syscall.ECONNREFUSED {
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
		err = readDHCPMagic(conn)
	}
	if call.Verb == spec.Add {
		timer.Stop()
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

// sendDHCP writes one message behind head, which is dhcpMagic where it was not sent before.
func sendDHCP(w io.Writer, head string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32([]byte(head), uint32(len(b))), b...))
	return err
}

// readDHCPMagic reads what the other end begins with; errDHCPPeer: it is not dhcpMagic.
func readDHCPMagic(r io.Reader) error {
	head := make([]byte, len(dhcpMagic))
	n, err := io.ReadFull(r, head)
	if !strings.HasPrefix(dhcpMagic, string(head[:n])) {
		return errDHCPPeer
	}
	return connClosed(err)
}

// receiveDHCP reads one message behind the magic.
func receiveDHCP(r io.Reader, v any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return connClosed(err)
	}
	length := binary.BigEndian.Uint32(head[:])
	if length > maxDHCPMessage {
		return fmt.Errorf("a message of %d bytes is too long", length)
	}
	b := make([]byte, length)
	if _, err := io.ReadFull(r, b); err != nil {
		return connClosed(err)
	}
	return json.Unmarshal(b, v)
}

// connClosed replaces the errors of a connection that the other end has closed.
func connClosed(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) {
		return errors.New("the connection was closed")
	}
	return err
}
