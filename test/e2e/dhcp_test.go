//go:build !no_dhcp

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
	"github.com/cnibox/cnibox/test/dhcptest"
)

func init() {
	services["dhcp"] = service{
		start: func(w *world) {
			p := furnishDHCP(w).daemon()
			w.stop = func() { p.kill(syscall.SIGKILL) }
		},
		stop: func(w *world) { w.DropLink("port0") },
	}
}

const dhcpConf = `{"cniVersion":"1.1.0","name":"demo","type":"bridge","bridge":"br0",
	"ipam":{"type":"dhcp","daemonSocketPath":"$DIR/dhcp.sock"}}`

// A dhcpWorld is a host with the bridge br0 and a DHCP server in a namespace on one of its ports.
type dhcpWorld struct {
	*world
	server *netns.NS
}

func newDHCPWorld(t *testing.T) *dhcpWorld {
	t.Helper()
	return makeDHCPBridge(newWorld(t))
}

// furnishDHCP makes the bridge with a DHCP server.
func furnishDHCP(w *world) *dhcpWorld {
	d := makeDHCPBridge(w)
	dhcptest.Start4(w.T, d.server)
	return d
}

// makeDHCPBridge makes the bridge and the namespace for a server.
func makeDHCPBridge(w *world) *dhcpWorld {
	w.Helper()
	return &dhcpWorld{w, dhcptest.Bridge(w.T, w.NS, "br0")}
}

// A process is a running daemon.
type process struct {
	*exec.Cmd
	log  *safeBuffer
	done chan struct{}
}

// A safeBuffer can be read while a process writes to it.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

// text returns what the daemon has printed so far.
func (p *process) text() string {
	p.log.mu.Lock()
	defer p.log.mu.Unlock()
	return p.log.b.String()
}

// daemon starts the daemon and waits until it listens or has ended.
func (w *dhcpWorld) daemon(env ...string) *process {
	w.Helper()
	p := &process{exec.Command(w.Path("bin/dhcp"), "daemon", "-socketpath", w.Path("dhcp.sock"), "-timeout", "2s", "-resendtimeout", "5m"), &safeBuffer{}, make(chan struct{})}
	p.Env, p.Stderr = append(os.Environ(), env...), p.log
	if err := w.NS.Do(p.Start); err != nil {
		w.Fatal(err)
	}
	go func() { p.Wait(); close(p.done) }()
	w.Cleanup(func() { p.kill(syscall.SIGKILL) })
	conf := strings.Replace(dhcpConf, `"bridge"`, `"dhcp"`, 1)
	kerneltest.Eventually(w, "a daemon that listens", func() error {
		select {
		case <-p.done:
			return nil
		default:
		}
		if a := w.plugin(spec.Status, "dhcp", conf, applettest.Container{}); a.exit != 0 {
			return errors.New(p.text())
		}
		return nil
	})
	return p
}

// kill signals the daemon and waits for its end.
func (p *process) kill(sig syscall.Signal) {
	p.Process.Signal(sig)
	<-p.done
}

// records returns the lease files.
func (w *dhcpWorld) records() []string {
	files, _ := filepath.Glob(w.Path("dhcp-leases/*.json"))
	return files
}

// ADD, CHECK, GET and DEL of a bridge with dhcp. The server gets the DHCPRELEASE although the same
// DEL deletes the link.
func TestKernelDHCPBridge(t *testing.T) {
	w := newDHCPWorld(t)
	s := dhcptest.Start4(t, w.server)
	d := w.daemon()
	c := w.Container("ctr")
	before := w.Snapshot(c)
	out := w.must("ADD", w.plugin(spec.Add, "bridge", dhcpConf, c))
	if !strings.Contains(out, `"address": "10.9.0.10/24"`) || !strings.Contains(out, `"gateway": "10.9.0.1"`) {
		t.Errorf("ADD answered %s", out)
	}
	addrs, err := kerneltest.Dial(t, c.NS).Link("eth0")
	if err != nil || !addrs.Up {
		t.Errorf("eth0: %v", err)
	}
	w.must("CHECK", w.plugin(spec.Check, "bridge", withPrev(dhcpConf, out), c))
	w.must("ADD of dhcp again", w.plugin(spec.Add, "dhcp", dhcpConf, c))
	if n := len(s.Leased()); n != 1 {
		t.Errorf("%d leases", n)
	}
	get := w.must("GET", w.plugin(spec.Get, "dhcp", strings.Replace(dhcpConf, "1.1.0", "0.4.0", 1), c))
	if !strings.Contains(get, `"address": "10.9.0.10/24"`) {
		t.Errorf("GET answered %s", get)
	}
	w.must("DEL", w.plugin(spec.Del, "bridge", dhcpConf, c))
	kerneltest.Until(w, "the release", func() bool { return len(s.Leased()) == 0 })
	w.Same("DEL", before, w.Snapshot(c))
	w.must("second DEL", w.plugin(spec.Del, "bridge", dhcpConf, c))
	d.kill(syscall.SIGTERM)
	if d.ProcessState.ExitCode() != 0 {
		t.Errorf("the daemon ended with %s: %s", d.ProcessState, d.text())
	}
	if _, err := os.Lstat(w.Path("dhcp.sock")); err == nil {
		t.Error("the socket is still there")
	}
}

// cni-exec gc releases the lease of a stale attachment: it calls DEL before the bridge's GC deletes
// the link that the release is sent over.
func TestKernelDHCPReleasedByGC(t *testing.T) {
	t.Parallel()
	w := newDHCPWorld(t)
	s := dhcptest.Start4(t, w.server)
	w.daemon()
	c := w.Container("ctr")
	list := `{"cniVersion":"1.1.0","name":"demo","plugins":[` + dhcpConf + `]}`
	w.write("net.d/demo.conflist", list)
	cniExec := func(args ...string) {
		t.Helper()
		w.must(args[0], w.run("", nil, append([]string{w.Path("bin/cni-exec")}, append(args, "--conf-dir", w.Path("net.d"), "--cache-dir", w.Path("cni"))...)...))
	}
	cniExec("add", "demo", c.Path, "--container-id", "ctr", "-i", "eth0")
	if n := len(s.Leased()); n != 1 {
		t.Fatalf("%d leases", n)
	}
	cniExec("gc", "demo", "--all")
	kerneltest.Until(w, "the release", func() bool { return len(s.Leased()) == 0 })
}

// The interface in the result has the MTU that the server sends.
func TestKernelDHCPMTU(t *testing.T) {
	w := newDHCPWorld(t)
	dhcptest.Start4(t, w.server).With(dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, []byte{1400 >> 8, 1400 & 0xff}))
	w.daemon()
	conf := strings.NewReplacer(`"bridge","bridge":"br0"`, `"macvlan","master":"br0"`)
	for i, conf := range []string{dhcpConf, conf.Replace(dhcpConf)} {
		plugin := []string{"bridge", "macvlan"}[i]
		c := w.Container(plugin)
		out := w.must("ADD", w.plugin(spec.Add, plugin, conf, c))
		res, err := spec.ParseResult([]byte(out), spec.Newest)
		if err != nil {
			t.Fatal(err)
		}
		for _, itf := range res.Interfaces {
			if want := map[bool]int{true: 1400, false: 1500}[itf.Sandbox != ""]; itf.MTU != want {
				t.Errorf("%s: %s has MTU %d, want %d", plugin, itf.Name, itf.MTU, want)
			}
		}
		w.must("CHECK", w.plugin(spec.Check, plugin, withPrev(conf, out), c))
		w.must("DEL", w.plugin(spec.Del, plugin, conf, c))
	}
}

// withPrev adds an ADD's result to a configuration as prevResult.
func withPrev(conf, prev string) string {
	return strings.TrimSuffix(strings.TrimSpace(conf), "}") + `,"prevResult":` + prev + "}"
}

// TestKernelDHCPSingleAddress leases an address without a network, as cloud providers do: its router is
// reached on the link.
func TestKernelDHCPSingleAddress(t *testing.T) {
	w := newDHCPWorld(t)
	dhcptest.Start4(t, w.server).With(dhcpv4.OptSubnetMask(net.CIDRMask(32, 32)), dhcpv4.OptRouter(net.IPv4(10, 9, 0, 1)))
	w.daemon()
	c := w.Container("ctr")
	conf := withPrev(dhcpConf, w.must("ADD", w.plugin(spec.Add, "bridge", dhcpConf, c)))
	w.must("CHECK", w.plugin(spec.Check, "bridge", conf, c))
	conn := kerneltest.Dial(t, c.NS)
	for dst, gw := range map[string]string{"10.9.0.1/32": "invalid IP", "0.0.0.0/0": "10.9.0.1"} {
		if r := kerneltest.Route(t, conn, dst); r.GW.String() != gw {
			t.Errorf("the route to %s is by %s, want %s", dst, r.GW, gw)
		}
	}
	w.must("DEL", w.plugin(spec.Del, "bridge", conf, c))
}

// Without a daemon ADD and STATUS name the command that starts it, and DEL releases the lease
// itself. The reference's DEL fails, so the pod stays.
func TestKernelDHCPWithoutDaemon(t *testing.T) {
	t.Parallel()
	w := newDHCPWorld(t)
	s := dhcptest.Start4(t, w.server)
	c := w.Container("ctr")
	before := w.Snapshot(c)
	for verb, code := range map[spec.Verb]int{spec.Add: 11, spec.Check: 11, spec.Status: 50, spec.Del: 0, spec.GC: 0, spec.Get: 3} {
		a := w.plugin(verb, "dhcp", goodConf("dhcp"), c)
		if got := a.code(t); got != code {
			t.Errorf("%s: code %d, want %d: %s", verb, got, code, a.stdout)
		}
	}
	a := w.plugin(spec.Add, "bridge", dhcpConf, c)
	if a.code(t) != 11 {
		t.Errorf("ADD of the bridge: %s", a.stdout)
	}
	w.Same("ADD that failed", before, w.Snapshot(c))

	d := w.daemon()
	w.must("ADD", w.plugin(spec.Add, "bridge", dhcpConf, c))
	d.kill(syscall.SIGKILL)
	if len(s.Leased()) != 1 || len(w.records()) != 1 {
		t.Errorf("%d leases, %d records", len(s.Leased()), len(w.records()))
	}
	w.must("DEL without the daemon", w.plugin(spec.Del, "bridge", dhcpConf, c))
	kerneltest.Until(w, "the release", func() bool { return len(s.Leased()) == 0 })
	if n := len(w.records()); n != 0 {
		t.Errorf("%d records", n)
	}
	w.daemon() // replaces the socket of the killed one
	w.must("ADD", w.plugin(spec.Add, "bridge", dhcpConf, c))
	w.must("DEL", w.plugin(spec.Del, "bridge", dhcpConf, c))
}

// doctor waits for STATUS of a plugin as long as for a CHECK, by --timeout, and says so of a daemon that hangs.
func TestKernelDHCPHungDaemon(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	daemon, err := net.Listen("unix", w.Path("d"))
	if err != nil {
		t.Fatal(err)
	}
	defer daemon.Close()
	w.write("net.d/a.conflist", `{"cniVersion":"1.1.0","name":"demo","plugins":[{"type":"bridge","bridge":"br0","ipam":{"type":"dhcp","daemonSocketPath":"`+w.Path("d")+`"}}]}`)
	a := w.run("", []string{"NETCONFPATH=" + w.Path("net.d"), spec.StateEnv + "=" + w.Path("state")}, w.Path("bin/cni-exec"), "doctor", "--timeout", "200ms")
	if a.exit != 1 || !strings.Contains(a.stdout, "network demo: ") || !strings.Contains(a.stdout, "STATUS") {
		t.Errorf("exit %d: %s%s", a.exit, a.stdout, a.stderr)
	}
}

// CHECK after the link was removed fails at once, each time. The reference's hangs the second time.
func TestKernelDHCPCheck(t *testing.T) {
	t.Parallel()
	w := newDHCPWorld(t)
	s := dhcptest.Start4(t, w.server)
	w.daemon()
	c := w.Container("ctr")
	out := w.must("ADD", w.plugin(spec.Add, "bridge", dhcpConf, c))
	asked := len(s.Seen())
	if err := kerneltest.Dial(t, c.NS).DelLink("eth0"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		a := w.plugin(spec.Check, "dhcp", withPrev(strings.Replace(dhcpConf, `"bridge"`, `"dhcp"`, 1), out), c)
		if a.code(t) != spec.CodeCheck {
			t.Errorf("CHECK answered %s", a.stdout)
		}
	}
	never := w.Container("never")
	if a := w.plugin(spec.Check, "dhcp", withPrev(dhcpConf, out), never); a.code(t) != spec.CodeCheck {
		t.Errorf("CHECK of what was never added: %s", a.stdout)
	}
	if n := len(s.Seen()); n != asked {
		t.Errorf("CHECK sent %d messages", n-asked)
	}
	w.must("DEL", w.plugin(spec.Del, "bridge", dhcpConf, c))
}

// A restarted daemon continues with its leases: CHECK, renewal and DEL work as before. The
// reference's daemon forgets them.
func TestKernelDHCPRestart(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	for name, sig := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "stopped": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) {
			w := newDHCPWorld(t)
			s := dhcptest.Start4(t, w.server)
			s.Life(time.Hour)
			s.With(dhcpv4.OptGeneric(dhcpv4.OptionRenewTimeValue, []byte{0, 0, 0, 1}),
				dhcpv4.OptGeneric(dhcpv4.OptionRebindingTimeValue, []byte{0, 0, 0x0c, 0})) // almost the hour
			d := w.daemon()
			c := w.Container("ctr")
			out := w.must("ADD", w.plugin(spec.Add, "bridge", dhcpConf, c))
			d.kill(sig)
			asked := len(s.Seen())
			w.daemon()
			w.must("CHECK", w.plugin(spec.Check, "bridge", withPrev(dhcpConf, out), c))
			kerneltest.Until(w, "a renewal", func() bool { return len(s.Seen()) > asked })
			if last := s.Seen()[asked]; !last.Unicast {
				t.Errorf("it is not a renewal: %s", last.Message.Summary())
			}
			w.must("DEL", w.plugin(spec.Del, "bridge", dhcpConf, c))
			kerneltest.Until(w, "the release", func() bool { return len(s.Leased()) == 0 })
		})
	}
}

// TestKernelDHCPKilled kills the daemon before each of its changes, and at each type of message
// that it sends, in ADD and then in DEL: see killedDHCP.
func TestKernelDHCPKilled(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	changes := 0
	for killedDHCP(t, fmt.Sprintf("change %d", changes+1), func(w *dhcpWorld, _ *dhcptest.Server4) *process {
		return w.daemon(fmt.Sprintf("%s=%d", killAt, changes+1))
	}) {
		changes++
	}
	if changes < 5 {
		t.Errorf("only %d changes", changes)
	}
	for _, kind := range []dhcpv4.MessageType{dhcpv4.MessageTypeDiscover, dhcpv4.MessageTypeRequest, dhcpv4.MessageTypeRelease} {
		var sent atomic.Int64
		killedDHCP(t, kind.String(), func(w *dhcpWorld, s *dhcptest.Server4) *process {
			d := w.daemon()
			s.Lose(func(m dhcptest.Seen) bool {
				if m.Type != kind || sent.Add(1) > 1 {
					return false
				}
				d.Process.Kill()
				return kind != dhcpv4.MessageTypeRelease // the daemon may have deleted its record
			})
			return d
		})
		if sent.Load() == 0 {
			t.Errorf("no %s", kind)
		}
	}
}

// killedDHCP has the daemon that start returns killed in ADD or DEL, and reports whether it was.
// Every lease that the server has written must be on our record, and after a restart of the daemon
// the runtime's DEL must delete both.
func killedDHCP(t *testing.T, at string, start func(*dhcpWorld, *dhcptest.Server4) *process) (killed bool) {
	t.Helper()
	w := newDHCPWorld(t)
	s := dhcptest.Start4(t, w.server)
	c := w.Container("ctr")
	before := w.Snapshot(c)
	d := start(w, s)
	add := w.plugin(spec.Add, "bridge", dhcpConf, c)
	if add.exit != 0 && add.code(t) != spec.CodeTryAgain {
		t.Errorf("%s: ADD answered %s", at, add.stdout)
	}
	if add.exit == 0 {
		w.plugin(spec.Del, "bridge", dhcpConf, c)
	}
	d.kill(syscall.SIGTERM) // it finishes what it has begun, or was killed
	killed = d.ProcessState.ExitCode() == -1
	// A DHCPRELEASE may still be queued.
	kerneltest.Until(w, "our record of the server's lease after "+at, func() bool { return len(s.Leased()) <= len(w.records()) })
	d = w.daemon()
	w.must("DEL", w.plugin(spec.Del, "bridge", dhcpConf, c))
	if files := w.records(); len(files) != 0 {
		t.Errorf("%s: records %v", at, files)
	}
	w.must("next ADD", w.plugin(spec.Add, "bridge", dhcpConf, c))
	w.must("next DEL", w.plugin(spec.Del, "bridge", dhcpConf, c))
	kerneltest.Until(w, "the release after "+at, func() bool { return len(s.Leased()) == 0 })
	d.kill(syscall.SIGTERM)
	w.Same(at, before, w.Snapshot(c))
	return killed
}

// The daemon dies while an ADD of both families has one lease, and no DEL follows: the next ADD
// gets both, and not only the recorded one.
func TestKernelDHCPOneFamilyRecorded(t *testing.T) {
	t.Parallel()
	w := newDHCPWorld(t)
	s := dhcptest.Start4(t, w.server)
	d := w.daemon()
	c := w.Container("ctr")
	host := kerneltest.Dial(t, w.NS)
	br, err := host.Link("br0")
	if err == nil {
		err = host.AddLink(rtnl.LinkSpec{Name: "port1", Up: true, Master: br.Index, Peer: &rtnl.LinkSpec{Name: "eth0", NS: c.NS}})
	}
	if err != nil {
		t.Fatal(err)
	}
	conf := strings.Replace(dhcpConf, `"type":"dhcp"`, `"type":"dhcp","ipv6":true`, 1)
	added := make(chan answer, 1)
	go func() { added <- w.plugin(spec.Add, "dhcp", conf, c) }()
	kerneltest.Until(w, "the IPv4 lease", func() bool {
		files := w.records()
		if len(files) == 0 {
			return false
		}
		text, _ := os.ReadFile(files[0])
		return strings.Contains(string(text), `"gateway"`) && !strings.Contains(string(text), `"pending"`)
	})
	d.kill(syscall.SIGKILL)
	if a := <-added; a.code(t) != spec.CodeTryAgain {
		t.Errorf("ADD answered %s", a.stdout)
	}
	dhcptest.Start6(t, w.server)
	w.daemon()
	out := w.must("next ADD", w.plugin(spec.Add, "dhcp", conf, c))
	if !strings.Contains(out, `"10.9.0.10/24"`) || !strings.Contains(out, `"fd09::10/128"`) {
		t.Errorf("next ADD answered %s", out)
	}
	w.must("DEL", w.plugin(spec.Del, "dhcp", conf, c))
	kerneltest.Until(w, "the release", func() bool { return len(s.Leased()) == 0 })
}

// Twenty concurrent ADDs get twenty addresses, and twenty concurrent DELs release them.
func TestKernelDHCPConcurrent(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	w := newDHCPWorld(t)
	s := dhcptest.Start4(t, w.server)
	w.daemon()
	var cs []applettest.Container
	for i := range 20 {
		cs = append(cs, w.Container(fmt.Sprintf("ctr%d", i)))
	}
	all := func(verb spec.Verb) {
		var group sync.WaitGroup
		for _, c := range cs {
			group.Go(func() {
				if a := w.plugin(verb, "bridge", dhcpConf, c); a.exit != 0 {
					t.Errorf("%s %s: %s", verb, c.ID, a.stdout)
				}
			})
		}
		group.Wait()
	}
	all(spec.Add)
	seen := map[string]bool{}
	for _, ip := range s.Leased() {
		seen[netip.MustParseAddr(ip).String()] = true
	}
	if len(seen) != 20 || len(w.records()) != 20 {
		t.Errorf("%d addresses, %d records", len(seen), len(w.records()))
	}
	all(spec.Del)
	kerneltest.Until(w, "the releases", func() bool { return len(s.Leased()) == 0 })
	if n := len(w.records()); n != 0 {
		t.Errorf("%d records", n)
	}
}

// DEL ends an ADD of the same attachment that still waits for a server. If the plugin is killed,
// the daemon drops its unfinished lease.
func TestKernelDHCPInterrupted(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	w := newDHCPWorld(t)
	s := dhcptest.Start4(t, w.server)
	s.Silence()
	w.daemon()
	c := w.Container("ctr")
	added := make(chan answer, 1)
	go func() { added <- w.plugin(spec.Add, "bridge", dhcpConf, c) }()
	kerneltest.Until(w, "a DISCOVER", func() bool { return len(s.Seen()) > 0 })
	w.must("DEL", w.plugin(spec.Del, "dhcp", dhcpConf, c))
	if a := <-added; a.code(t) != spec.CodeTryAgain { // minutes before its own timeout
		t.Errorf("ADD: %s", a.stdout)
	}

	// Killed between DISCOVER and ACK.
	var killed atomic.Bool
	s.Answer(func(m dhcptest.Seen, reply *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 {
		if m.Type == dhcpv4.MessageTypeRequest && !killed.Load() {
			return nil
		}
		return []*dhcpv4.DHCPv4{reply}
	})
	cmd := exec.Command(w.Path("bin/bridge"))
	cmd.Env, cmd.Stdin = append(c.Env(spec.Add), "CNI_PATH="+w.Path("bin")), strings.NewReader(w.Expand(dhcpConf))
	if err := w.NS.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	kerneltest.Until(w, "a record", func() bool { return len(w.records()) == 1 })
	cmd.Process.Kill()
	cmd.Wait()
	killed.Store(true)
	kerneltest.Until(w, "no record and no lease", func() bool { return len(w.records()) == 0 && len(s.Leased()) == 0 })
	w.must("DEL", w.plugin(spec.Del, "bridge", dhcpConf, c))
}

// A daemon with socket activation listens on the inherited socket, whatever its flags say, and does
// not remove it at exit. A second daemon for the same leases does not start.
func TestKernelDHCPActivated(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	w := newDHCPWorld(t)
	var l *net.UnixListener
	err := w.NS.Do(func() (err error) { // /proc/net/unix is the namespace's
		l, err = net.ListenUnix("unix", &net.UnixAddr{Name: w.Path("dhcp.sock"), Net: "unix"})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.Command("/bin/sh", "-c", `LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" daemon -socketpath "$1" -pidfile "$2"`,
		w.Path("bin/dhcp"), w.Path("elsewhere.sock"), w.Path("dhcp.pid"))
	cmd.ExtraFiles = []*os.File{f}
	if err := w.NS.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	conf := strings.Replace(dhcpConf, `"bridge"`, `"dhcp"`, 1)
	kerneltest.Until(w, "STATUS", func() bool { return w.plugin(spec.Status, "dhcp", conf, applettest.Container{}).exit == 0 })
	kerneltest.Until(w, "the pid file", func() bool {
		b, _ := os.ReadFile(w.Path("dhcp.pid"))
		return strings.TrimSpace(string(b)) == fmt.Sprint(cmd.Process.Pid)
	})
	a := w.run("", nil, w.Path("bin/dhcp"), "daemon", "-socketpath", w.Path("dhcp.sock"))
	if a.exit != 1 || !strings.Contains(a.stderr, "another daemon") {
		t.Errorf("second daemon: %d %s", a.exit, a.stderr)
	}
	cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(w.Path("dhcp.sock")); err != nil {
		t.Error("the socket of the service manager is gone")
	}
	if _, err := os.Lstat(w.Path("dhcp.pid")); err == nil {
		t.Error("the pid file is still there")
	}
}

// dhcpMemory limits the daemon's resident memory with 500 leases, in KiB.
const dhcpMemory = 24 << 10

// The daemon's memory with 500 leases. All are of one interface, which makes no difference: the
// daemon has nothing open for a lease.
func TestKernelDHCPMemory(t *testing.T) {
	kerneltest.Slow(t)
	w := newDHCPWorld(t)
	dhcptest.Start4(t, w.server)
	d := w.daemon()
	c := w.Container("ctr")
	w.must("ADD", w.plugin(spec.Add, "bridge", dhcpConf, c))
	d.kill(syscall.SIGKILL)
	text, err := os.ReadFile(w.records()[0])
	if err != nil {
		t.Fatal(err)
	}
	for i := range 499 {
		a := spec.Attachment{Network: "demo", ContainerID: fmt.Sprintf("ctr%d", i), IfName: "eth0"}
		w.write("dhcp-leases/"+a.Key()+".json", strings.Replace(string(text), `"containerID":"ctr"`, `"containerID":"`+a.ContainerID+`"`, 1))
	}
	d = w.daemon()
	kerneltest.Until(w, "500 leases", func() bool { return strings.Contains(d.text(), "500 leases") })
	rss, threads := d.status("VmRSS"), d.status("Threads")
	t.Logf("500 leases: %d kB resident, %d threads", rss, threads)
	if rss > dhcpMemory || threads > 30 {
		t.Errorf("%d kB resident, %d threads", rss, threads)
	}
	entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.Process.Pid))
	if len(entries) > 20 {
		t.Errorf("%d open files", len(entries))
	}
}

// status returns a number of /proc/PID/status.
func (p *process) status(key string) (n int) {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid))
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, key+":"); ok {
			fmt.Sscan(rest, &n)
		}
	}
	return n
}

// busybox's udhcpd, which Debian has, as the server.
func TestKernelDHCPBusybox(t *testing.T) {
	t.Parallel()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	w := newDHCPWorld(t)
	w.write("udhcpd.conf", "start 10.9.0.50\nend 10.9.0.60\ninterface srv0\nlease_file $DIR/udhcpd.leases\npidfile $DIR/udhcpd.pid\n"+
		"option subnet 255.255.255.0\noption router 10.9.0.1\noption dns 10.9.0.53\noption domain example.org\noption lease 600\noption mtu 1400\n"+
		"option staticroutes 0.0.0.0/0 10.9.0.1, 10.20.0.0/16 10.9.0.2\n")
	w.write("udhcpd.leases", "")
	server := exec.Command(busybox, "udhcpd", "-f", w.Path("udhcpd.conf"))
	if err := w.server.Do(server.Start); err != nil {
		t.Fatal(err)
	}
	defer server.Wait()
	defer server.Process.Kill()
	w.daemon()
	c := w.Container("ctr")
	out := w.must("ADD", w.plugin(spec.Add, "bridge", dhcpConf, c))
	for _, want := range []string{`/24"`, `"10.9.0.53"`, `"domain": "example.org"`, `"dst": "10.20.0.0/16"`, `"dst": "0.0.0.0/0"`} {
		if !strings.Contains(out, want) {
			t.Errorf("no %s in %s", want, out)
		}
	}
	l, err := kerneltest.Dial(t, c.NS).Link("eth0")
	if err != nil || l.MTU != 1400 {
		t.Errorf("eth0: %+v, %v", l, err)
	}
	w.must("CHECK", w.plugin(spec.Check, "bridge", withPrev(dhcpConf, out), c))
	w.must("DEL", w.plugin(spec.Del, "bridge", dhcpConf, c))
}
