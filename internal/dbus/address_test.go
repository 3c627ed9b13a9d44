package dbus

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSockets(t *testing.T) {
	for address, want := range map[string]string{
		"unix:path=/run/dbus/system_bus_socket":                   "/run/dbus/system_bus_socket",
		"unix:path=/run/my%20bus%2Fone,guid=0123456789abcdef":     "/run/my bus/one",
		"unix:guid=0123456789abcdef,path=/run/bus":                "/run/bus",
		"unix:abstract=/tmp/dbus-x%3B1":                           "@/tmp/dbus-x;1",
		"tcp:host=localhost,port=1;unix:path=/a;unix:abstract=b;": "/a @b",
		"unix:path=/a+b":              "/a+b",
		"":                            "has no Unix socket",
		"autolaunch:":                 "has no Unix socket",
		"unix:runtime=yes":            "has no Unix socket",
		"unix:path=run/bus":           "has no Unix socket",
		"unix:abstract=":              "has no Unix socket",
		"/run/dbus/system_bus_socket": "has no Unix socket",
		"unix:path=/a%2":              "bad escape",
		"unix:path=/a%00b":            "zero byte",
	} {
		sockets, err := Sockets(address)
		got := strings.Join(sockets, " ")
		if err != nil {
			got = err.Error()
		}
		if got != want && (err == nil || !strings.Contains(got, want)) {
			t.Errorf("%q: got %q, want %q", address, got, want)
		}
	}
}

// The first socket with a listening bus is used, also an abstract one.
func TestDialFirstListening(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	abstract := "@" + none
	l, err := net.Listen("unix", abstract)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err == nil {
			io.WriteString(c, "REJECTED EXTERNAL\r\n")
			io.Copy(io.Discard, c)
			c.Close()
		}
	}()
	if _, err := Dial(t.Context(), none, abstract, none); err == nil || !strings.Contains(err.Error(), "the bus refuses user") || !strings.Contains(err.Error(), abstract) {
		t.Errorf("got %v", err)
	}
	if _, err := Dial(t.Context(), none, none); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), none) {
		t.Errorf("no listener at any address: %v", err)
	}
}
