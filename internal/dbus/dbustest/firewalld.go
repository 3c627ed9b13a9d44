package dbustest

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// A Firewalld answers for zones as firewalld does.
type Firewalld struct {
	c net.Conn

	sending sync.Mutex
	serial  uint32

	mu      sync.Mutex
	sources []string      // "zone source", in the order in which they came
	fail    func() string // the error that a call is answered with; empty: none
}

// Zones are those that it knows.
var zones = []string{"trusted", "public"}

// Start puts a firewalld on the bus for the test.
func Start(t testing.TB, socket string) *Firewalld {
	t.Helper()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	f := &Firewalld{c: c}
	f.Fail("")
	fmt.Fprintf(c, "\x00AUTH EXTERNAL %s\r\n", hex.EncodeToString([]byte(strconv.Itoa(os.Getuid()))))
	answer := make([]byte, 39) // "OK ", 32 digits and the end of the line
	if _, err := io.ReadFull(c, answer[:37]); err != nil || !bytes.HasPrefix(answer, []byte("OK ")) {
		t.Fatalf("bus: %q, %v", answer, err)
	}
	fmt.Fprint(c, "BEGIN\r\n")
	f.bus("Hello", "", nil)
	name := append(str(nil, "org.fedoraproject.FirewallD1"), 0, 0, 0)
	f.bus("RequestName", "su", append(name, 0, 0, 0, 0))
	for got := 0; got < 2; { // both are answered before there is a call
		m, err := read(c)
		if err != nil || m.typ == 3 {
			t.Fatalf("bus: %v %q", err, m.args)
		}
		if m.typ == 2 {
			got++
		}
	}
	go f.serve()
	return f
}

// Stop takes it off the bus.
func (f *Firewalld) Stop() { f.c.Close() }

// Fail makes every call fail with the message; empty: no more.
func (f *Firewalld) Fail(message string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = func() string { return message }
}

// FailNth makes the nth call from now on, counted from 1, fail with the message, and no other.
func (f *Firewalld) FailNth(n int, message string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = func() string {
		if n--; n == 0 {
			return message
		}
		return ""
	}
}

// Sources returns what is in the zones, as "trusted 10.1.0.2/32, …".
func (f *Firewalld) Sources() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.sources, ", ")
}

// Reload forgets all sources, as the real one does with what is not permanent, and says that it
// has reloaded.
func (f *Firewalld) Reload() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sources = nil
	name := "org.fedoraproject.FirewallD1"
	f.write(4, "", nil, field{1, 'o', "/org/fedoraproject/FirewallD1"}, field{2, 's', name}, field{3, 's', "Reloaded"})
}

// serve answers until the connection ends.
func (f *Firewalld) serve() {
	for {
		m, err := read(f.c)
		if err != nil {
			return
		}
		if m.typ != 1 {
			continue
		}
		sig, body, failure := f.answer(m)
		if failure != "" {
			f.send(3, m, "s", str(nil, failure))
			continue
		}
		f.send(2, m, sig, body)
	}
}

// answer does what is asked for, in the words of firewalld's errors.
func (f *Firewalld) answer(m msg) (sig string, body []byte, failure string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if message := f.fail(); message != "" {
		return "", nil, message
	}
	if m.path != "/org/fedoraproject/FirewallD1" || m.iface != "org.fedoraproject.FirewallD1.zone" || len(m.args) != 2 {
		return "", nil, fmt.Sprintf("no such method: %+v", m)
	}
	zone, source := m.args[0], m.args[1]
	if !slices.Contains(zones, zone) {
		return "", nil, "INVALID_ZONE: " + zone
	}
	if !strings.Contains(source, "/") {
		return "", nil, "INVALID_ADDR: " + source
	}
	entry := zone + " " + source
	at := slices.Index(f.sources, entry)
	switch {
	case m.member == "querySource":
		return "b", binary.LittleEndian.AppendUint32(nil, uint32(min(at+1, 1))), ""
	case m.member == "addSource" && at >= 0:
		return "", nil, "ZONE_ALREADY_SET: '" + source + "' already bound to '" + zone + "'"
	case m.member == "addSource":
		f.sources = append(f.sources, entry)
	case m.member == "removeSource" && at < 0:
		return "", nil, "UNKNOWN_SOURCE: '" + source + "' is not in any zone"
	case m.member == "removeSource":
		f.sources = slices.Delete(f.sources, at, at+1)
	default:
		return "", nil, "no such method: " + m.member
	}
	return "s", str(nil, zone), ""
}

// A msg is a message of which only strings are read.
type msg struct {
	typ                         byte
	serial                      uint32
	path, iface, member, sender string
	args                        []string
}

// read reads one message from a machine like this one.
func read(r io.Reader) (m msg, err error) {
	head := make([]byte, 16)
	if _, err := io.ReadFull(r, head); err != nil {
		return m, err
	}
	le := binary.LittleEndian
	fields := make([]byte, (le.Uint32(head[12:])+7)&^7)
	body := make([]byte, le.Uint32(head[4:]))
	if _, err = io.ReadFull(r, fields); err == nil {
		_, err = io.ReadFull(r, body)
	}
	m.typ, m.serial = head[1], le.Uint32(head[8:])
	sig := ""
	for at, end := 0, int(le.Uint32(head[12:])); at < end; at = (at + 7) &^ 7 {
		code, typ := fields[at], fields[at+2]
		at += 4
		switch typ {
		case 'u':
			at += 4
		case 'g':
			sig = string(fields[at+1 : at+1+int(fields[at])])
			at += int(fields[at]) + 2
		default:
			n := int(le.Uint32(fields[at:]))
			v := string(fields[at+4 : at+4+n])
			at += n + 5
			switch code {
			case 1:
				m.path = v
			case 2:
				m.iface = v
			case 3:
				m.member = v
			case 7:
				m.sender = v
			}
		}
	}
	for at := 0; strings.HasPrefix(sig, "s"); sig = sig[1:] {
		at = (at + 3) &^ 3
		n := int(le.Uint32(body[at:]))
		m.args = append(m.args, string(body[at+4:at+4+n]))
		at += n + 5
	}
	return m, err
}

// str appends a string.
func str(b []byte, s string) []byte {
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return append(append(binary.LittleEndian.AppendUint32(b, uint32(len(s))), s...), 0)
}

// bus calls a method of the bus itself.
func (f *Firewalld) bus(member, sig string, body []byte) {
	name := "org.freedesktop.DBus"
	f.write(1, sig, body, field{1, 'o', "/org/freedesktop/DBus"}, field{2, 's', name}, field{3, 's', member}, field{6, 's', name})
}

// send answers a call.
func (f *Firewalld) send(typ byte, to msg, sig string, body []byte) {
	fields := []field{{5, 'u', string(binary.LittleEndian.AppendUint32(nil, to.serial))}, {6, 's', to.sender}}
	if typ == 3 {
		fields = append(fields, field{4, 's', "org.fedoraproject.FirewallD1.Exception"})
	}
	f.write(typ, sig, body, fields...)
}

// A field is one of a message's header.
type field struct {
	code, typ byte
	value     string
}

// write sends a message.
func (f *Firewalld) write(typ byte, sig string, body []byte, fields ...field) {
	f.sending.Lock()
	defer f.sending.Unlock()
	f.serial++
	le := binary.LittleEndian
	var list []byte
	for _, fl := range append(fields, field{8, 'g', sig}) {
		for len(list)%8 != 0 {
			list = append(list, 0)
		}
		list = append(list, fl.code, 1, fl.typ, 0)
		switch fl.typ {
		case 'u':
			list = append(list, fl.value...)
		case 'g':
			list = append(append(append(list, byte(len(fl.value))), fl.value...), 0)
		default:
			list = str(list, fl.value)
		}
	}
	b := []byte{'l', typ, 0, 1}
	b = le.AppendUint32(b, uint32(len(body)))
	b = le.AppendUint32(b, f.serial)
	b = le.AppendUint32(b, uint32(len(list)))
	b = append(b, list...)
	for len(b)%8 != 0 {
		b = append(b, 0)
	}
	f.c.Write(append(b, body...))
}
