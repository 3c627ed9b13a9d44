package main

import (
	"archive/tar"
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The bytes are those that protoc --encode makes.
func TestMessage(t *testing.T) {
	m := message{}.number(1, 300).text(2, "testing").sub(3, message{}.number(1, 150)).sub(3, message{}.number(1, 0))
	if got, want := hex.EncodeToString(m), "08ac02120774657374696e671a030896011a020800"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, err := m.first(2); got != "testing" || err != nil {
		t.Errorf("text: %q, %v", got, err)
	}
	found, err := m.find(3, 1)
	if err != nil || len(found) != 2 || !bytes.Equal(found[0], []byte{0x96, 0x01}) || !bytes.Equal(found[1], []byte{0}) {
		t.Errorf("numbers: % x, %v", found, err)
	}
	if got, err := m.first(9, 1); got != "" || err != nil {
		t.Errorf("missing: %q, %v", got, err)
	}
}

func TestBrokenMessage(t *testing.T) {
	for name, m := range map[string]message{
		"half a tag": {0x80}, "no value": {0x08}, "too short": {0x12, 5, 'a'}, "fixed size": {0x0d, 1, 2, 3, 4},
	} {
		if _, err := m.find(1); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestCall has a server that speaks as much gRPC as the client does.
func TestCall(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(serve)}
	server.Protocols.SetUnencryptedHTTP2(true)
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	s := dialService(socket, "echo.Service")
	for method, want := range map[string]string{
		"Echo": "", "Refuse": "Refuse: HTTP 200 OK, gRPC status \"5\": not found: 5 %", "Nothing": "Nothing: an answer of 0 bytes",
	} {
		out, err := s.call(t.Context(), method, message{}.text(1, "hello"))
		if want == "" && (err != nil || string(out) != "\x0a\x05hello") {
			t.Errorf("%s: %q, %v", method, out, err)
		}
		if want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%s: got %v, want %s", method, err, want)
		}
	}
}

func serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/grpc")
	switch r.URL.Path {
	case "/echo.Service/Echo":
		w.Header().Set("Trailer", "Grpc-Status")
		io.Copy(w, r.Body)
		w.Header().Set("Grpc-Status", "0")
	case "/echo.Service/Refuse":
		w.Header().Set("Grpc-Status", "5")
		w.Header().Set("Grpc-Message", "not found: 5 %25")
	default:
		w.Header().Set("Grpc-Status", "0")
	}
}

// The query is dig's for name.example, with the type left out.
func TestAnswer(t *testing.T) {
	query := func(kind string) []byte {
		b, err := hex.DecodeString("beef01200001000000000000" + "046e616d65076578616d706c6500" + kind + "0001")
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	got := answer(query("0001"))
	if !bytes.HasSuffix(got, named.AsSlice()) || hex.EncodeToString(got[:12]) != "beef81800001000100000000" {
		t.Errorf("A: % x", got)
	}
	if got := answer(query("001c")); len(got) != len(query("001c")) || got[7] != 0 {
		t.Errorf("AAAA: % x", got)
	}
	for _, n := range []int{0, 5, 12, 20, 29} {
		if got := answer(query("0001")[:n]); got != nil {
			t.Errorf("%d bytes of a query: % x", n, got)
		}
	}
}

func TestImage(t *testing.T) {
	if _, err := exec.LookPath("busybox"); err != nil {
		t.Skip("SKIPPED: ", err)
	}
	var b bytes.Buffer
	if err := writeImage(&b); err != nil {
		t.Fatal(err)
	}
	var names []string
	for r := tar.NewReader(&b); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
	for _, want := range []string{"manifest.json", "config.json", "layer.tar"} {
		if !strings.Contains(strings.Join(names, " "), want) {
			t.Errorf("no %s among %q", want, names)
		}
	}
}
