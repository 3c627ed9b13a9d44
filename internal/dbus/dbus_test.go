package dbus

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/dbus/dbustest"
)

// zone returns a method of firewalld's zone interface.
func zone(name string) Method {
	return Method{"org.fedoraproject.FirewallD1", "/org/fedoraproject/FirewallD1", "org.fedoraproject.FirewallD1.zone", name}
}

// Calls, results and errors pass through the bus daemon of Debian.
func TestCallsOverARealBus(t *testing.T) {
	socket := dbustest.Bus(t)
	c, err := Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var e *Error
	if err := c.Call(zone("addSource"), "trusted", "10.1.0.2/32"); !errors.As(err, &e) || e.Name != "org.freedesktop.DBus.Error.NameHasNoOwner" {
		t.Errorf("no service of the name: %v (%+v)", err, e)
	}
	f := dbustest.Start(t, socket)
	if err := c.Call(zone("addSource"), "trusted", "10.1.0.2/32"); err != nil {
		t.Error(err)
	}
	if got := f.Sources(); got != "trusted 10.1.0.2/32" {
		t.Errorf("added %q", got)
	}
	if err := c.Call(zone("addSource"), "trusted", "10.1.0.2/32"); !errors.As(err, &e) || !strings.HasPrefix(e.Error(), "ZONE_ALREADY_SET: ") {
		t.Errorf("again: %v", err)
	}
	for source, want := range map[string]bool{"10.1.0.2/32": true, "10.1.0.3/32": false} {
		if got, err := c.Ask(zone("querySource"), "trusted", source); got != want || err != nil {
			t.Errorf("%s: %v, %v", source, got, err)
		}
	}
	if _, err := c.Ask(zone("removeSource"), "trusted", "10.1.0.2/32"); err == nil {
		t.Error("a string was taken for a boolean")
	}
}

func TestDialErrors(t *testing.T) {
	dir := t.TempDir()
	if _, err := Dial(t.Context(), filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no socket: %v", err)
	}
	if _, err := Dial(t.Context(), filepath.Join(dir, strings.Repeat("x", 200))); err == nil {
		t.Error("a path too long for a socket")
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(dir, "dead")})
	unix.Close(fd)
	if _, err := Dial(t.Context(), filepath.Join(dir, "dead")); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("no listener: %v", err)
	}
}

// A bus that sends invalid data, hangs or closes the connection is an error. The wait ends with the
// context.
func TestInvalidBus(t *testing.T) {
	for name, tt := range map[string]struct{ answer, want string }{
		"refuses":           {"REJECTED EXTERNAL\r\n", "the bus refuses user"},
		"hangs up":          {"", "has closed the connection"},
		"no line":           {strings.Repeat("x", longest+10), "malformed"},
		"nonsense":          {"OK 1234\r\n" + strings.Repeat("?", 100), "byte order"},
		"huge":              {"OK 1234\r\nl\x02\x00\x01\xff\xff\xff\x7f\x01\x00\x00\x00\x00\x00\x00\x00", "bytes"},
		"cut":               {"OK 1234\r\nl\x02\x00\x01\x00\x00", "has closed the connection"},
		"field of any type": {"OK 1234\r\nl\x02\x00\x01\x00\x00\x00\x00\x01\x00\x00\x00\x05\x00\x00\x00\x05\x01v\x00\x00\x00\x00\x00", `field of type "v"`},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Dial(t.Context(), serveAnswer(t, tt.answer, false)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Dial(ctx, serveAnswer(t, "OK 1234\r\n", true)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("hangs: %v", err)
	}
}

// A bus that never falls silent holds no call beyond the deadline, nor one that takes nothing.
func TestDeadlineCountsWhateverArrives(t *testing.T) {
	signal := []byte{'l', typeSignal, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, fieldReplySerial, 1, 'u', 0, 0xff, 0xff, 0xff, 0}
	wrongSerial := bytes.Clone(signal)
	wrongSerial[1] = typeReturn
	for name, flood := range map[string]struct {
		begin string
		again []byte
		pause time.Duration
	}{
		"signals":       {"OK 1234\r\n", bytes.Repeat(signal, 100), 0},
		"wrong serials": {"OK 1234\r\n", bytes.Repeat(wrongSerial, 100), 0},
		"slow signals":  {"OK 1234\r\n", signal, time.Millisecond},
		"dripped line":  {"OK ", []byte{'1'}, time.Millisecond},
		"dripped bytes": {"OK 1234\r\nl\x02\x00\x01\x00\x00\x01\x00\x01\x00\x00\x00\x00\x00\x00\x00", []byte{0}, time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			socket := serve(t, func(c net.Conn) {
				_, err := io.WriteString(c, flood.begin)
				for err == nil {
					_, err = c.Write(flood.again)
					time.Sleep(flood.pause)
				}
			})
			c, err := dial(t.Context(), socket, time.Now().Add(200*time.Millisecond))
			if err == nil {
				c.Close()
			}
			wantDeadline(t, err)
		})
	}
	t.Run("takes nothing", func(t *testing.T) {
		hold := make(chan struct{})
		defer close(hold)
		hello := []byte{'l', typeReturn, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, fieldReplySerial, 1, 'u', 0, 1, 0, 0, 0}
		socket := serve(t, func(c net.Conn) {
			io.WriteString(c, "OK 1234\r\n"+string(hello))
			<-hold
		})
		c, err := dial(t.Context(), socket, time.Now().Add(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.deadline = time.Now().Add(200 * time.Millisecond)
		wantDeadline(t, c.Call(zone("addSource"), strings.Repeat("x", 16<<20)))
	})
}

// wantDeadline requires the error of the deadline.
func wantDeadline(t *testing.T, err error) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), "no answer") {
		t.Errorf("got %v", err)
	}
}

// serve listens for one client, which gets its own connection.
func serve(t *testing.T, client func(net.Conn)) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "bus")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "bus"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); os.RemoveAll(dir) })
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		client(c)
	}()
	return l.Addr().String()
}

// serveAnswer listens for one client and sends it the answer. It closes the connection, unless it
// hangs.
func serveAnswer(t *testing.T, answer string, hang bool) string {
	t.Helper()
	return serve(t, func(c net.Conn) {
		io.WriteString(c, answer)
		if hang {
			io.Copy(io.Discard, c)
		}
		c.(*net.UnixConn).CloseWrite()
		io.Copy(io.Discard, c)
	})
}

// The encoding of a call can be decoded, and a message in either byte order.
func TestDecode(t *testing.T) {
	b := call(7, zone("addSource"), []string{"trusted", "10.1.0.2/32"})
	m, err := decode(b)
	if err != nil || m.typ != typeCall || m.signature != "ss" || m.text() != "trusted" {
		t.Errorf("got %+v, %v", m, err)
	}
	big := []byte{'B', typeReturn, 0, 1, 0, 0, 0, 4, 0, 0, 0, 9, 0, 0, 0, 15,
		fieldReplySerial, 1, 'u', 0, 0, 0, 0, 7, fieldSignature, 1, 'g', 0, 1, 'b', 0, 0, 0, 0, 0, 1}
	m, err = decode(big)
	if err != nil || m.reply != 7 {
		t.Fatalf("got %+v, %v", m, err)
	}
	if yes, err := m.truth(); !yes || err != nil {
		t.Errorf("got %v, %v", yes, err)
	}
	for n := range b {
		if _, err := decode(b[:n]); err == nil {
			t.Errorf("%d bytes of %d were taken for a message", n, len(b))
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(call(1, zone("addSource"), []string{"trusted", "10.1.0.2/32"}))
	f.Add([]byte{'l', typeReturn, 0, 1, 4, 0, 0, 0, 2, 0, 0, 0, 8, 0, 0, 0, fieldReplySerial, 1, 'u', 0, 7, 0, 0, 0, 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		m, err := decode(b)
		if !bytes.Equal(b, before) {
			t.Error("decode changed what it read")
		}
		if err != nil {
			return
		}
		m.text()
		if yes, err := m.truth(); err == nil && yes != (binary.ByteOrder.Uint32(m.order, m.body) == 1) {
			t.Errorf("truth of %x is %v", m.body, yes)
		}
	})
}
