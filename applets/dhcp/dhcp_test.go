package dhcp

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/rpc"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/ipam/dhcp"
	"github.com/cnibox/cnibox/spec"
)

// dhcpRequest parses members of "ipam".
func dhcpRequest(t *testing.T, ipam, args string) (*plugin, error) {
	t.Helper()
	conf := `{"cniVersion":"1.1.0","name":"net","type":"x","ipam":{"type":"dhcp"` + ipam + `}}`
	r, err := spec.NewRequest(spec.Call{Verb: spec.Add, ContainerID: "ctr", IfName: "eth0", NetNS: "/run/netns/x", Args: args}, []byte(conf))
	if err != nil {
		t.Fatal(err)
	}
	return readPlugin(r)
}

func TestDHCPConf(t *testing.T) {
	long := strings.Repeat("x", 256)
	tests := map[string]struct {
		ipam, args string
		send       []dhcp.Option
		request    []byte
		err        string
	}{
		"empty":         {request: []byte{1, 121, 3, 33, 6, 15, 119, 26, 42}},
		"own first":     {ipam: `,"request":[{"option":"42"},{"option":"routers"}]`, request: []byte{42, 3, 1, 121, 33, 6, 15, 119, 26}},
		"own alone":     {ipam: `,"request":[{"option":"42","skipDefault":true},{"option":"subnet-mask"}]`, request: []byte{42, 1}},
		"nothing":       {ipam: `,"request":[{"skipDefault":true}]`, request: []byte{1, 3, 15, 6}},
		"value":         {ipam: `,"provide":[{"option":"host-name","value":"web"}]`, send: []dhcp.Option{{Code: 12, Data: []byte("web")}}},
		"from args":     {ipam: `,"provide":[{"option":"12","value":"web","fromArg":"K8S_POD_NAME"}]`, args: "K8S_POD_NAME=pod", send: []dhcp.Option{{Code: 12, Data: []byte("pod")}}},
		"no such arg":   {ipam: `,"provide":[{"option":"12","fromArg":"K8S_POD_NAME"}]`, args: "X=1"},
		"client id":     {ipam: `,"provide":[{"option":"dhcp-client-identifier","value":"me"}]`, send: []dhcp.Option{{Code: 61, Data: []byte("me")}}},
		"unknown name":  {ipam: `,"provide":[{"option":"hostname","value":"x"}]`, err: "hostname"},
		"too big":       {ipam: `,"request":[{"option":"256"}]`, err: "\"256\""},
		"huge":          {ipam: `,"request":[{"option":"99999999999999999999"}]`, err: "99999999999999999999"},
		"negative":      {ipam: `,"request":[{"option":"-1"}]`, err: "\"-1\""},
		"client's own":  {ipam: `,"provide":[{"option":"53","value":"\u0001"}]`, err: `"ipam.provide" has option 53`},
		"asked for":     {ipam: `,"request":[{"option":"51","skipDefault":true},{"option":"0"},{"option":"255"}]`, request: []byte{51, 0, 255}},
		"long value":    {ipam: `,"provide":[{"option":"12","value":"` + long + `"}]`, err: "value too long"},
		"long from arg": {ipam: `,"provide":[{"option":"12","fromArg":"A"}]`, args: "A=" + long, err: "value too long"},
		"neither":       {ipam: `,"ipv4":false`, err: "nothing to lease"},
		"priority":      {ipam: `,"priority":-1`, err: "priority"},
		"socket":        {ipam: `,"daemonSocketPath":"dhcp.sock"`, err: "absolute"},
		"long socket":   {ipam: `,"daemonSocketPath":"/` + long + `"`, err: "107 bytes"},
		"wrong type":    {ipam: `,"request":"3"`, err: "ipam.request"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p, err := dhcpRequest(t, tt.ipam, tt.args)
			if tt.err != "" || err != nil {
				if err == nil || tt.err == "" || !strings.Contains(err.Error(), tt.err) || spec.AsError(err).Code != spec.CodeConfig {
					t.Errorf("error %v, want %q", err, tt.err)
				}
				return
			}
			if !slices.EqualFunc(p.conf.Send, tt.send, func(a, b dhcp.Option) bool { return a.Code == b.Code && bytes.Equal(a.Data, b.Data) }) {
				t.Errorf("sends %v", p.conf.Send)
			}
			if tt.request != nil && !bytes.Equal(p.conf.Request, tt.request) {
				t.Errorf("requests %v, want %v", p.conf.Request, tt.request)
			}
		})
	}
}

// The client identifier equals the reference's, so a server gives a container the same address
// after either daemon was replaced by the other.
func TestDHCPClientID(t *testing.T) {
	if got := string(clientID(spec.Attachment{Network: "net", ContainerID: "ctr", IfName: "eth0"})); got != "\x00ctr/net/eth0" {
		t.Errorf("got %q", got)
	}
	long := spec.Attachment{Network: strings.Repeat("n", 200), ContainerID: strings.Repeat("c", 200), IfName: "eth0"}
	if got := clientID(long); len(got) != 255 {
		t.Errorf("%d bytes", len(got))
	}
	// The server identifies the client by it, so it must not change.
	if got, want := hex.EncodeToString(duid(spec.Attachment{Network: "net1", ContainerID: "c1", IfName: "eth0"})), "0004de872fa597ee81f4b56b39a0383fab09"; got != want {
		t.Errorf("DUID %s, want %s", got, want)
	}
	if got := duid(long); len(got) != 18 || got[1] != 4 {
		t.Errorf("DUID %x", got)
	}
}

func TestDHCPResult(t *testing.T) {
	l := dhcp.Lease{
		Address: netip.MustParsePrefix("10.9.0.10/24"), Gateway: netip.MustParseAddr("10.9.0.1"),
		Routes: []dhcp.Route{{Dst: netip.MustParsePrefix("0.0.0.0/0"), GW: netip.MustParseAddr("10.9.0.1")}, {Dst: netip.MustParsePrefix("10.8.0.0/16")}},
		DNS:    []netip.Addr{netip.MustParseAddr("10.9.0.53")}, Domain: "example.org", Search: []string{"a.example.org"},
	}
	b, err := resultOf([]*dhcp.Lease{&l}, 7).Encode(spec.Newest)
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := json.Compact(&got, b); err != nil {
		t.Fatal(err)
	}
	const want = `{"cniVersion":"1.1.0","ips":[{"address":"10.9.0.10/24","gateway":"10.9.0.1"}],` +
		`"routes":[{"dst":"0.0.0.0/0","gw":"10.9.0.1","priority":7},{"dst":"10.8.0.0/16","priority":7,"scope":253}],` +
		`"dns":{"nameservers":["10.9.0.53"],"domain":"example.org","search":["a.example.org"]}}`
	if !sameJSON(got.Bytes(), []byte(want)) {
		t.Errorf("got %s", got.String())
	}
}

// sameJSON compares documents without regard to the order of members.
func sameJSON(a, b []byte) bool {
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	p, _ := json.Marshal(x)
	q, _ := json.Marshal(y)
	return bytes.Equal(p, q)
}

// startDHCP runs a daemon in this process until the test ends.
func startDHCP(t *testing.T, args ...string) (socket string, stop func()) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "dhcp.sock")
	ctx, cancel := context.WithCancel(context.Background())
	done, log := make(chan int), &lockedBuffer{}
	go func() {
		done <- daemonMain(ctx, applet.Process{Args: append(args, "-socketpath", socket), Getenv: func(string) string { return "" }, Stderr: log})
	}()
	stop = func() {
		cancel()
		if done != nil {
			if code := <-done; code != 0 {
				t.Errorf("the daemon ended with %d: %s", code, log)
			}
			done = nil
		}
	}
	t.Cleanup(stop)
	kerneltest.Eventually(t, "a daemon", func() error {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			return fmt.Errorf("%w: %s", err, log)
		}
		return conn.Close()
	})
	return socket, stop
}

// The reference's plugin reports the error of the daemon.
func TestDHCPReferencePlugin(t *testing.T) {
	socket, _ := startDHCP(t)
	_, err := rpc.DialHTTP("unix", socket)
	if err == nil || !strings.Contains(err.Error(), "must both be of this version of cnibox") {
		t.Errorf("got %v", err)
	}
}

// A daemon of the reference or of another version is recognized by its answer.
func TestDHCPOtherDaemon(t *testing.T) {
	tests := map[string]struct {
		serve func(net.Listener)
		want  string
	}{
		"reference": {func(l net.Listener) {
			serveHTTP(l, rpc.NewServer())
		}, "stop the other daemon and start"},
		"other version": {func(l net.Listener) { serveText(l, "cnibox-dhcp 9\nxxxx") }, "stop the other daemon and start"},
		"mail server":   {func(l net.Listener) { serveText(l, "220 mail ready at once\r\n") }, "stop the other daemon and start"},
		"hangs up":      {func(l net.Listener) { serveText(l, "") }, "connection was closed"},
		"cut off":       {func(l net.Listener) { serveText(l, magic+"\x00\x00\x00\x09{}") }, "connection was closed"},
		"huge":          {func(l net.Listener) { serveText(l, magic+"\xff\xff\xff\xff{}") }, "too long"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "s")
			l, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go tt.serve(l)
			_, err = callDaemon(t.Context(), socket, &call{Verb: spec.Check})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// Verbs, even ADD, do not wait for a listener that does not answer.
func TestDHCPDaemonWithoutAnswer(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket) // accepts no connection
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = callDaemon(t.Context(), socket, &call{Verb: spec.Add})
	if err == nil || !strings.Contains(err.Error(), "restart `cnibox dhcp daemon`") {
		t.Errorf("got %v", err)
	}
}

// The daemon answers a plugin of another version at once, and the plugin sees the version mismatch.
func TestDHCPPluginOfOtherVersion(t *testing.T) {
	socket, _ := startDHCP(t)
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := send(conn, "cnibox-dhcp 2\n", &call{Verb: spec.Status}); err != nil {
		t.Fatal(err)
	}
	if err := readMagic(conn); !errors.Is(err, errPeer) {
		t.Errorf("got %v", err)
	}
}

func serveText(l net.Listener, text string) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		conn.Read(make([]byte, 4096))
		conn.Write([]byte(text))
		conn.Close()
	}
}

func TestDHCPFlags(t *testing.T) {
	tests := map[string]struct {
		args string
		env  map[string]string
		want string // part of the error; "": none
	}{
		"none":             {},
		"the reference's":  {args: "-pidfile /run/x.pid -hostprefix /host -socketpath /run/cni/d.sock -broadcast=true -timeout 5s -resendmax 30s -resendtimeout 60s"},
		"two hyphens":      {args: "--broadcast --timeout=5s"},
		"unknown":          {args: "-x 1", want: "not defined"},
		"no value":         {args: "-timeout", want: "needs an argument"},
		"no time":          {args: "-timeout 5", want: "invalid value"},
		"zero":             {args: "-timeout 0s", want: "above 0"},
		"relative pidfile": {args: "-pidfile x.pid", want: "absolute"},
		"relative socket":  {args: "-socketpath x.sock", want: "absolute"},
		"a word":           {args: "start", want: "not a flag"},
		"others' sockets":  {env: map[string]string{"LISTEN_FDS": "2", "LISTEN_PID": "1"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for word := range strings.FieldsSeq(tt.args) {
				name, _, _ := strings.Cut(strings.TrimPrefix(word, "-"), "=")
				if a := &Applet; name != word && tt.want == "" && !strings.Contains(a.Help, "-"+strings.TrimPrefix(name, "-")+": ") {
					t.Errorf("the help does not say what %s is for", word)
				}
			}
			_, err := readFlags(applet.Process{Args: strings.Fields(tt.args), Getenv: func(k string) string { return tt.env[k] }})
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
