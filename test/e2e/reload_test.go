package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/nfttest"
	"github.com/cnibox/cnibox/rtnl"
)

const reloadList = `{"cniVersion":"1.1.0","name":"demo","plugins":[
	{"type":"bridge","bridge":"br0","isDefaultGateway":true,"ipMasq":true,"hairpinMode":true%s,
	 "ipam":{"type":"host-local","dataDir":"$DIR/leases","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]]}},
	{"type":"portmap","capabilities":{"portMappings":true},"dataDir":"$DIR/ports"},
	{"type":"firewall","ingressPolicy":"same-bridge","dataDir":"$DIR/firewall"}]}`

// A reloading is a host with attachments and a LAN.
type reloading struct {
	*world
	lan *netns.NS
}

// newReloading makes a host whose network has additional keys of bridge.
func newReloading(t *testing.T, more string) *reloading {
	r := &reloading{world: newWorld(t)}
	r.write("net.d/demo.conflist", fmt.Sprintf(reloadList, more))
	return r
}

// exec runs cni-exec with the directories of the world.
func (r *reloading) exec(env []string, args ...string) answer {
	r.Helper()
	return r.run("", env, append([]string{r.Path("bin/cni-exec"), "--conf-dir", r.Path("net.d"), "--cache-dir", r.Path("cni")}, args...)...)
}

// add attaches a container.
func (r *reloading) add(c applettest.Container, args ...string) {
	r.Helper()
	r.must("add", r.exec(nil, append([]string{"add", "demo", c.Path, "--container-id", c.ID}, args...)...))
}

// ok runs reload and check, which must succeed.
func (r *reloading) ok() {
	r.Helper()
	r.must("reload", r.exec(nil, "reload"))
	r.must("check", r.exec(nil, "check"))
}

// joinLAN connects the host to a LAN, on which 192.0.2.2 is another machine.
func (r *reloading) joinLAN() {
	r.Helper()
	r.lan = kerneltest.NS(r.T)
	kerneltest.LoUp(r.T, r.lan)
	kerneltest.AddLink(r.T, r.NS, rtnl.LinkSpec{Name: "up0", Up: true, Peer: &rtnl.LinkSpec{Name: "lan0", NS: r.lan}})
	kerneltest.Address(r.T, r.NS, "up0", "192.0.2.1/24")
	kerneltest.Address(r.T, r.lan, "lan0", "192.0.2.2/24")
}

// A transfer is an open TCP connection.
type transfer struct {
	what string
	net.Conn
	in *bufio.Reader
}

func (r *reloading) dial(what string, from *netns.NS, to string) *transfer {
	r.Helper()
	x := &transfer{what: what}
	err := from.Do(func() (err error) { x.Conn, err = (&net.Dialer{Timeout: processTime}).Dial("tcp", to); return err })
	if err != nil {
		r.Fatalf("%s: %v", what, err)
	}
	r.Cleanup(func() { x.Close() })
	x.in = bufio.NewReader(x.Conn)
	return x
}

// echo sends a line and waits for its echo.
func (x *transfer) echo(within time.Duration) error {
	x.SetDeadline(time.Now().Add(within))
	line := strings.Repeat("x", 5000) + "\n"
	_, err := x.Write([]byte(line))
	got := ""
	if err == nil {
		got, err = x.in.ReadString('\n')
	}
	if err == nil && got != line {
		err = fmt.Errorf("got %.20q", got)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", x.what, err)
	}
	return nil
}

// transfers opens a connection within the bridge, one to a published port, and a masqueraded one.
func (r *reloading) transfers(one, two applettest.Container) []*transfer {
	r.Helper()
	r.EchoLines(one.NS, "")
	r.EchoLines(r.lan, "")
	all := []*transfer{
		r.dial("from a neighbour", two.NS, "10.1.0.2:80"),
		r.dial("from the LAN to a published port", r.lan, "192.0.2.1:8080"),
		r.dial("from a container to the LAN", two.NS, "192.0.2.2:80"),
		r.dial("from the host", r.NS, "10.1.0.2:80"),
	}
	r.echoAll(all)
	return all
}

func (r *reloading) echoAll(all []*transfer) {
	r.Helper()
	for _, x := range all {
		if err := x.echo(processTime); err != nil {
			r.Error(err)
		}
	}
}

// destroy deletes the rules and the bridge.
func (r *reloading) destroy() {
	r.Helper()
	if a := r.run("", nil, "nft", "flush", "ruleset"); a.exit != 0 {
		r.Fatal(a.stderr)
	}
	conn := kerneltest.Dial(r.T, r.NS)
	if err := conn.DelLink("br0"); err != nil && !errors.Is(err, os.ErrNotExist) {
		r.Fatal(err)
	}
}

// After the rules and the bridge were deleted, reload makes open connections work again and new
// ones possible, with the same addresses.
func TestKernelReloadTraffic(t *testing.T) {
	r := newReloading(t, `,"macspoofchk":true`)
	r.joinLAN()
	one, two := r.Container("one"), r.Container("two")
	r.add(one, "-p", "8080:80")
	r.add(two)
	all := r.transfers(one, two)
	inside := kerneltest.Snapshot(t, one.NS) + kerneltest.Snapshot(t, two.NS)
	host, rules := kerneltest.Snapshot(t, r.NS), nfttest.Ruleset(t, r.NS)
	for range 2 {
		r.destroy()
		r.ok()
		r.echoAll(all)
	}
	r.destroy() // another program recreates the bridge with its own address
	kerneltest.AddLink(t, r.NS, rtnl.LinkSpec{Name: "br0", Kind: rtnl.Bridge{}, MTU: 1500, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}})
	r.ok()
	r.echoAll(all)
	r.Same("containers", inside, kerneltest.Snapshot(t, one.NS)+kerneltest.Snapshot(t, two.NS))
	r.Same("host", host, kerneltest.Snapshot(t, r.NS))
	r.Same("rules", rules, nfttest.Ruleset(t, r.NS))
	for what, new := range map[string]*transfer{
		"from the LAN to a published port": r.dial("a new one", r.lan, "192.0.2.1:8080"),
		"from a container to the LAN":      r.dial("a new one", two.NS, "192.0.2.2:80"),
	} {
		if err := new.echo(processTime); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// An upgrade by install and reload loses no packet of a flood in each direction.
func TestKernelReloadLosesNoPacket(t *testing.T) {
	r := newReloading(t, "")
	r.joinLAN()
	one, two := r.Container("one"), r.Container("two")
	r.add(one, "-p", "8080:80")
	r.add(two)
	all := r.transfers(one, two)
	lost := make(chan error, 1)
	stop := make(chan struct{})
	go func() { lost <- r.flood(two.NS, r.lan, stop) }()
	for range 10 {
		r.must("install", r.run("", nil, r.Path("bin/cnibox"), "install", r.Path("bin")))
		r.ok()
	}
	close(stop)
	if err := <-lost; err != nil {
		t.Error(err)
	}
	r.echoAll(all)
}

// flood sends numbered UDP packets from one namespace to 192.0.2.2 in the other, which echoes them,
// until stop is closed. It returns an error for missing echoes.
func (r *reloading) flood(from, to *netns.NS, stop <-chan struct{}) error {
	var server, client net.PacketConn
	err := to.Do(func() (err error) { server, err = net.ListenPacket("udp", "192.0.2.2:7"); return err })
	if err == nil {
		err = from.Do(func() (err error) { client, err = net.ListenPacket("udp", "0.0.0.0:0"); return err })
	}
	if err != nil {
		return err
	}
	defer server.Close()
	defer client.Close()
	go func() {
		b := make([]byte, 100)
		for {
			n, addr, err := server.ReadFrom(b)
			if err != nil {
				return
			}
			server.WriteTo(b[:n], addr)
		}
	}()
	lan := net.UDPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.2:7"))
	b := make([]byte, 100)
	for n := 0; ; n++ {
		select {
		case <-stop:
			if n < 100 {
				return fmt.Errorf("%d packets are not a flood", n)
			}
			return nil
		default:
		}
		want := strconv.Itoa(n)
		if _, err := client.WriteTo([]byte(want), lan); err != nil {
			return err
		}
		client.SetReadDeadline(time.Now().Add(processTime / 4))
		got, _, err := client.ReadFrom(b)
		if err != nil || string(b[:got]) != want {
			return fmt.Errorf("packet %d of the ping: got %q, %w", n, b[:got], err)
		}
	}
}

// TestKernelReloadKilled kills reload, or ends it by a signal, at each of its changes: the next one
// finishes the work.
func TestKernelReloadKilled(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	r := newReloading(t, `,"macspoofchk":true`)
	one, two := r.Container("one"), r.Container("two")
	r.add(one, "-p", "8080:80", "-p", "5300:53/udp")
	r.add(two)
	state := func() string {
		return kerneltest.Snapshot(t, r.NS) + nfttest.Ruleset(t, r.NS) + kerneltest.Snapshot(t, one.NS) + kerneltest.Snapshot(t, two.NS)
	}
	before := state()
	r.destroy()
	r.ok() // writes the new handles of rules, the same each time
	r.destroy()
	a := r.exec([]string{listChanges + "=" + r.Path("changes")}, "reload")
	r.must("reload", a)
	changes, err := os.ReadFile(r.Path("changes"))
	if err != nil {
		t.Fatalf("%v; reload printed %s%s", err, a.stdout, a.stderr)
	}
	n := strings.Count(string(changes), "\n")
	if n < 8 {
		t.Fatalf("the changes are %q", changes)
	}
	for at := 1; at <= n; at++ {
		r.destroy()
		if a := r.exec([]string{fmt.Sprintf("%s=%d", killAt, at)}, "reload"); a.exit != -1 {
			t.Fatalf("it was not killed at change %d of %q: %s%s", at, changes, a.stdout, a.stderr)
		}
		r.ok()
		r.Same(fmt.Sprintf("killed at change %d of %q", at, changes), before, state())
	}
}

// A signal ends a reload at any moment, and the next one finishes the work.
func TestKernelReloadSignal(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	r := newReloading(t, "")
	one := r.Container("one")
	r.add(one, "-p", "8080:80")
	before := kerneltest.Snapshot(t, r.NS) + nfttest.Ruleset(t, r.NS)
	for _, sig := range []string{"INT", "TERM"} {
		for ms := 1; ms <= 12; ms++ {
			r.destroy()
			script := fmt.Sprintf(`"$0" --conf-dir "$1" --cache-dir "$2" reload & sleep 0.%03d; kill -%s $! 2>/dev/null; wait $!; e=$?; [ $e -lt 2 ] || [ $e -gt 128 ]`, ms, sig)
			if a := r.run("", nil, "/bin/sh", "-c", script, r.Path("bin/cni-exec"), r.Path("net.d"), r.Path("cni")); a.exit != 0 {
				t.Errorf("SIG%s after %d ms: exit %d: %s", sig, ms, a.exit, a.stderr)
			}
			r.ok()
			r.Same("SIG"+sig, before, kerneltest.Snapshot(t, r.NS)+nfttest.Ruleset(t, r.NS))
		}
	}
}

// reload restores the VLANs of ports, and the gateway of the VLAN.
func TestKernelReloadVLAN(t *testing.T) {
	kerneltest.Need(t, "CONFIG_BRIDGE_VLAN_FILTERING", func() error {
		return rtnl.InNewNS(func(c *rtnl.Conn) error {
			return c.AddLink(rtnl.LinkSpec{Name: "br0", Kind: rtnl.Bridge{VLANFiltering: true}})
		})
	})
	r := newReloading(t, `,"vlan":100,"vlanTrunk":[{"minID":200,"maxID":210}],"portIsolation":true`)
	one, two := r.Container("one"), r.Container("two")
	r.add(one)
	r.add(two)
	r.EchoLines(one.NS, "")
	x := r.dial("from the host", r.NS, "10.1.0.2:80")
	host := kerneltest.Snapshot(t, r.NS)
	r.destroy()
	r.ok()
	r.Same("host", host, kerneltest.Snapshot(t, r.NS))
	if err := x.echo(processTime); err != nil {
		t.Error(err)
	}
}

// lock locks a container as a hanging verb does.
func (r *reloading) lock(id string) (unlock func()) {
	r.Helper()
	fd, err := unix.Open(r.Path("cni/cnibox/locks/container-"+id), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Flock(fd, unix.LOCK_EX)
	}
	if err != nil {
		r.Fatal(err)
	}
	return func() { unix.Close(fd) }
}

// An attachment that another verb has locked is restored after that verb, and does not delay the
// others.
func TestKernelReloadBusy(t *testing.T) {
	t.Parallel()
	r := newReloading(t, "")
	one, two := r.Container("one"), r.Container("two")
	r.add(one)
	r.add(two, "-p", "8080:80")
	r.destroy()
	unlock := r.lock("one")
	check, out := r.start(nil, "check")
	kerneltest.Until(r, "the check of the other one", func() bool { return out.count("check two (demo)") == 1 })
	if out.count("check one (demo)") > 0 {
		t.Error("an attachment was checked that another verb has locked")
	}
	check.Process.Kill()
	check.Wait()
	done := make(chan answer, 1)
	go func() { done <- r.exec(nil, "reload") }()
	kerneltest.Until(r, "the other one's port", func() bool { return strings.Contains(nfttest.Ruleset(t, r.NS), "8080") })
	if strings.Contains(nfttest.Ruleset(t, r.NS), "demo/one/eth0") {
		t.Error("an attachment was restored that another verb has locked")
	}
	unlock()
	r.must("reload", <-done)
	r.must("check", r.exec(nil, "check"))
}

// TestKernelBootKilled kills the reload after a boot at each of its changes: the next one finishes the work.
func TestKernelBootKilled(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	r := newReloading(t, "")
	one := r.Container("one")
	before := ""
	for at := 0; ; at++ {
		r.add(one, "-p", "8080:80")
		entry := r.Path("cni/results/demo-one-eth0")
		b, err := os.ReadFile(entry)
		if err == nil {
			_, rest, _ := strings.Cut(string(b), `"cniboxBootID":"`)
			id, _, _ := strings.Cut(rest, `"`)
			err = os.WriteFile(entry, []byte(strings.Replace(string(b), id, "another", 1)), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		killed := false
		if at > 0 {
			killed = r.exec([]string{fmt.Sprintf("%s=%d", killAt, at)}, "reload").exit == -1
		}
		r.must("reload", r.exec(nil, "reload"))
		switch state := r.Snapshot(one); {
		case at == 0:
			before = state
		default:
			r.Same(fmt.Sprintf("killed at change %d", at), before, state)
		}
		if at > 0 && !killed {
			if at < 8 {
				t.Errorf("there are but %d changes", at-1)
			}
			return
		}
	}
}

// With twice as many attachments that publish many ports, reload and check read the rule set twice
// as much, not four times.
func TestKernelReloadReadsPortsOnce(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	r := newReloading(t, "")
	const each = 200 // ports of an attachment
	containers := 0
	add := func(n int) {
		for ; n > 0; n-- {
			first := 1024 + containers*each
			r.add(r.Container(fmt.Sprint("c", containers)), "-p", fmt.Sprintf("%d-%d:%[1]d-%[2]d", first, first+each-1))
			containers++
		}
	}
	read := func(args ...string) (bytes int) {
		t.Helper()
		r.strace("--seccomp-bpf", "-e", "trace=read", "-o", r.Path("reads"))
		a := r.exec(nil, args...)
		r.tracer = nil
		r.must(args[0], a)
		text, err := os.ReadFile(r.Path("reads"))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.SplitSeq(string(text), "\n") {
			_, result, _ := strings.Cut(line, " = ")
			n, _ := strconv.Atoi(result) // errors and signals count as 0
			bytes += max(n, 0)
		}
		return bytes
	}
	verbs := [][]string{{"reload"}, {"check"}, {"doctor", "--no-probe"}}
	wayOut := rtnl.Route{Dst: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Link: kerneltest.Link(t, kerneltest.Dial(t, r.NS), "lo").Index}
	if err := kerneltest.Dial(t, r.NS).Do(rtnl.NewRoute(wayOut)); err != nil { // doctor expects a default route
		t.Fatal(err)
	}
	const some = 6
	add(some)
	before := map[string]int{}
	for _, args := range verbs {
		before[args[0]] = read(args...)
	}
	add(some)
	for _, args := range verbs {
		if was, is := before[args[0]], read(args...); was < each*some || is > 5*was/2 {
			t.Errorf("%q reads %d bytes for %d attachments, and %d for %d", args, was, some, is, 2*some)
		}
	}
}
