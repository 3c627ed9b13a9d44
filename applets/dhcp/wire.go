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

	"github.com/cnibox/cnibox/ipam/dhcp"
	"github.com/cnibox/cnibox/spec"
)

// Plugin and daemon communicate over a unix stream socket, with one call for each connection. The
// plugin sends magic, the length of a JSON object (four bytes, big endian) and the object, a call.
// The daemon sends magic as soon as it has read that of the plugin: otherwise a plugin could wait
// minutes for a lease at a socket without a daemon. Later it sends length and object of an answer.
const (
	magic      = "cnibox-dhcp 1\n" // the number is the protocol's
	maxMessage = 1 << 20           // bytes of JSON
)

// A call is a verb on an attachment. Only ADD needs the configuration.
type call struct {
	Verb spec.Verb `json:"verb"`
	spec.Attachment
	Config dhcp.Config `json:"config"`
}

// An answer has an error, or the leases, if the verb returns any.
type answer struct {
	Error  *spec.Error   `json:"error,omitempty"`
	Leases []*dhcp.Lease `json:"leases,omitempty"`
}

var (
	// errNoDaemon reports a socket at which no daemon of cnibox answers.
	errNoDaemon = errors.New("no DHCP daemon")

	errHangs = errors.New("what listens there is stopped or hangs: restart `cnibox dhcp daemon`")

	// errPeer reports another peer: the reference, which serves Go's net/rpc over HTTP, or another
	// version of the protocol.
	errPeer = errors.New("dhcp plugin and daemon must both be of this version of cnibox: " +
		"install it as the plugin, and stop the other daemon and start `cnibox dhcp daemon`")
)

// noDaemon wraps errNoDaemon and the cause; verb says what no daemon does at the socket, such as
// "listens".
func noDaemon(verb, socket string, err error) error {
	return fmt.Errorf("%w %s at %s: %w", errNoDaemon, verb, socket, err)
}

// answerTime bounds the wait for an answer that does not need a DHCP server.
const answerTime = 5 * time.Second

// unixAddr is for functions of package net that take an address: those that take a string link a
// resolver of host names into the program, which has 180 KB.
func unixAddr(path string) *net.UnixAddr { return &net.UnixAddr{Name: path, Net: "unix"} }

// callDaemon calls the daemon at a socket. The error is errNoDaemon if no daemon of cnibox answers;
// errors of the daemon keep their code. After the daemon has sent its magic, an ADD waits as long
// as the daemon does.
func callDaemon(ctx context.Context, socket string, call *call) ([]*dhcp.Lease, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(answerTime, func() { cancel(errHangs) })
	defer timer.Stop()
	var dialer net.Dialer
	conn, err := dialer.DialUnix(ctx, "unix", nil, unixAddr(socket))
	var errno syscall.Errno
	if errors.As(err, &errno) { // the rest of the error repeats the path
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
	var answer answer
	if err = send(conn, magic, call); err == nil {
		err = readMagic(conn)
	}
	if call.Verb == spec.Add {
		timer.Stop()
	}
	if err == nil {
		err = receive(conn, &answer)
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

// send writes one message after head, which is magic in the first message.
func send(w io.Writer, head string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32([]byte(head), uint32(len(b))), b...))
	return err
}

// readMagic reads the first bytes of the peer; errPeer: they are not magic.
func readMagic(r io.Reader) error {
	head := make([]byte, len(magic))
	n, err := io.ReadFull(r, head)
	if !strings.HasPrefix(magic, string(head[:n])) {
		return errPeer
	}
	return connClosed(err)
}

// receive reads one message after the magic.
func receive(r io.Reader, v any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return connClosed(err)
	}
	length := binary.BigEndian.Uint32(head[:])
	if length > maxMessage {
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
