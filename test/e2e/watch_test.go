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
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/dbus/dbustest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/nfttest"
	"github.com/cnibox/cnibox/rtnl"
)

// A lines is the output of a program so far.
type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start starts cni-exec with the directories of the world, without a system bus.
func (r *reloading) start(env []string, args ...string) (*exec.Cmd, *lines) {
	r.Helper()
	out := &lines{}
	cmd := exec.Command(r.Path("bin/cni-exec"), append(args, "--conf-dir", r.Path("net.d"), "--cache-dir", r.Path("cni"))...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(append(os.Environ(), "CNI_PATH="+r.Path("bin"), "DBUS_SYSTEM_BUS_ADDRESS=unix:path="+r.Path("nobus")), env...)
	if err := r.NS.Do(cmd.Start); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		if cmd.ProcessState == nil {
			cmd.Process.Kill()
			cmd.Wait()
		}
	})
	return cmd, out
}

// reloaded begins a reload's line about the container "one".
const reloaded = "one (demo): "

// watch starts cni-exec reload --watch, and waits for its first reload, which has something to
// restore.
func (r *reloading) watch(env ...string) (*exec.Cmd, *lines) { return r.watchWith(nil, env...) }

// watchWith is watch with more flags.
func (r *reloading) watchWith(flags []string, env ...string) (*exec.Cmd, *lines) {
	r.Helper()
	r.must("nft", r.run("", nil, "nft", "flush", "ruleset"))
	cmd, out := r.start(env, append([]string{"reload", "--watch"}, flags...)...)
	kerneltest.Until(r, "the first reload", func() bool { return out.count(reloaded) > 0 })
	return cmd, out
}

// idle waits until no reload runs.
func (r *reloading) idle(watch *exec.Cmd) {
	r.Helper()
	kerneltest.Until(r, "the end of the reload", func() bool {
		all, _ := filepath.Glob("/proc/[0-9]*/stat")
		return !slices.ContainsFunc(all, func(path string) bool {
			stat, _ := os.ReadFile(path)
			_, rest, _ := bytes.Cut(stat, []byte(") ")) // proc_pid_stat(5): state and parent follow the name
			f := bytes.Fields(rest)
			return len(f) > 1 && string(f[1]) == strconv.Itoa(watch.Process.Pid)
		})
	})
}

// restores causes an event, and waits until the rules are as they were (empty: any), all attachments
// are as add left them, and the watch has printed the cause. A reload that an earlier event has started may
// restore what this one deletes, and names only the earlier event: then this one is caused again.
func (r *reloading) restores(watch *exec.Cmd, out *lines, rules, cause string, event func()) {
	r.Helper()
	before := out.count(cause)
	kerneltest.Until(r, "a reload that names: "+cause, func() bool {
		event()
		kerneltest.Eventually(r, "the rules after: "+cause, func() error {
			if got := nfttest.Ruleset(r, r.NS); got != rules && rules != "" {
				return errors.New("they are not as before:\n" + kerneltest.Diff(rules, got))
			}
			return nil
		})
		kerneltest.Until(r, "check after: "+cause, func() bool { return r.exec(nil, "check").exit == 0 })
		r.idle(watch)
		return out.count(cause) > before
	})
}

// follows reports whether a process has an inotify watch of a directory.
func follows(process *exec.Cmd, dir string) bool {
	var st syscall.Stat_t
	if syscall.Stat(dir, &st) != nil {
		return false
	}
	all, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", process.Process.Pid))
	return slices.ContainsFunc(all, func(path string) bool {
		info, _ := os.ReadFile(path)
		return bytes.Contains(info, fmt.Appendf(nil, " ino:%x ", st.Ino)) // proc_pid_fdinfo(5)
	})
}

// The watch restores the rules and the bridge, and open connections continue. It ignores what the
// plugins delete themselves.
func TestKernelReloadWatch(t *testing.T) {
	r := newReloading(t, "")
	r.joinLAN()
	one, two := r.Container("one"), r.Container("two")
	r.add(one, "-p", "8080:80")
	r.add(two)
	all := r.transfers(one, two)
	rules := nfttest.Ruleset(t, r.NS)
	hung, err := net.Listen("unix", r.Path("nobus")) // a system bus that does not answer
	if err != nil {
		t.Fatal(err)
	}
	defer hung.Close()
	cmd, out := r.watch()

	host := kerneltest.Dial(t, r.NS)
	const lost = "rules of cnibox were deleted"
	flush := func() { r.must("nft", r.run("", nil, "nft", "flush", "ruleset")) }
	r.restores(cmd, out, rules, lost, flush)
	r.echoAll(all)
	r.restores(cmd, out, rules, "bridge br0 was deleted", func() {
		if err := host.DelLink("br0"); err != nil {
			t.Fatal(err)
		}
	})
	// Without rules, packets to a published port reach the host, which resets the connection.
	r.echoAll(all)

	// Each deletion by itself: a map of "one" alone, a map of both, a chain, the whole table, and
	// iptables' table.
	for _, words := range []string{"flush map inet cnibox dnat4", "flush map inet cnibox masq4", "flush chain inet cnibox postrouting", "delete table inet cnibox", "flush chain ip filter CNI-FORWARD"} {
		r.restores(cmd, out, rules, lost, func() { r.must(words, r.run("", nil, append([]string{"nft"}, strings.Fields(words)...)...)) })
	}

	// The name of the program does not matter: it may be that of a plugin, or of this program.
	program, err := exec.LookPath("nft")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(r.Path("named"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pve-firewall", "bridge", "cni-exec"} {
		named := r.Path("named/" + name)
		if err := os.Symlink(program, named); err != nil {
			t.Fatal(err)
		}
		for _, words := range []string{"flush ruleset", "flush map inet cnibox dnat4", "flush chain ip filter CNI-FORWARD"} {
			r.restores(cmd, out, rules, lost, func() { r.must(words, r.run("", nil, append([]string{named}, strings.Fields(words)...)...)) })
		}
	}

	// What a hanging verb has locked is restored after the verb, everything else each time.
	unlock := r.lock("one")
	for range 2 {
		flush()
		kerneltest.Until(r, "the rules of the other container", func() bool { return strings.Contains(nfttest.Ruleset(t, r.NS), "demo/two/eth0") })
	}
	unlock()
	r.restores(cmd, out, "", lost, func() {}) // the sets of bridges name another of its attachments

	// It ignores a deleted attachment, and another program's rules and link: no cause names them, and
	// nothing is printed about the attachment.
	others := out.count("two (demo): ")
	r.must("del", r.exec(nil, "del", "demo", two.Path, "--container-id", "two"))
	r.must("nft", r.run("", nil, "nft", "add table ip other; add chain ip other c; add rule ip other c accept; delete table ip other"))
	if err := errors.Join(host.AddLink(rtnl.LinkSpec{Name: "p0", Peer: &rtnl.LinkSpec{Name: "p1"}}), host.DelLink("p0")); err != nil {
		t.Fatal(err)
	}
	r.restores(cmd, out, "", lost, flush)
	if out.count("p0") > 0 || out.count("two (demo): ") != others || out.count("nothing to do") > 0 {
		t.Errorf("it prints more than what it repairs:\n%s", out)
	}

	cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Errorf("SIGTERM: %v\n%s", err, out)
	}
}

// The watch restores forwarding, gateway addresses and leases, each with a line that names the
// cause; --metrics counts it. It ignores a DEL, and an address of another link.
func TestKernelReloadWatchGateway(t *testing.T) {
	r := newReloading(t, "")
	r.joinLAN()
	one, two := r.Container("one"), r.Container("two")
	r.add(one)
	r.add(two)
	rules := nfttest.Ruleset(t, r.NS)
	// The directory is another user's: what that one puts there is not written through, and not waited for.
	prom, precious, pipe := r.Path("cnibox.prom"), r.Path("precious"), r.Path("pipe.prom")
	if err := errors.Join(os.WriteFile(precious, []byte("precious"), 0o600), os.Symlink(precious, prom+".new"), os.Symlink(precious, r.Path("link.prom")),
		unix.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	cmd, out := r.watchWith([]string{"--metrics", prom})
	host := kerneltest.Dial(t, r.NS)
	br, err := host.Link("br0")
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := host.Addrs(br.Index)
	if err != nil {
		t.Fatal(err)
	}
	lease := r.Path("leases/demo/10.1.0.2") // of "one"
	for _, e := range []struct {
		event, cause string
		do           func() error
	}{
		{"forwarding of IPv4", "(net.ipv4.ip_forward was set to 0)", func() error { return r.NS.SetSysctl("net/ipv4/ip_forward", "0") }},
		{"forwarding of IPv6", "(net.ipv6.conf.all.forwarding was set to 0)", func() error { return r.NS.SetSysctl("net/ipv6/conf/all/forwarding", "0") }},
		{"forwarding of the bridge, IPv4", "(net.ipv4.conf.br0.forwarding was set to 0)", func() error { return r.NS.SetSysctl("net/ipv4/conf/br0/forwarding", "0") }},
		{"forwarding of the bridge, IPv6", "(net.ipv6.conf.br0.forwarding was set to 0)", func() error { return r.NS.SetSysctl("net/ipv6/conf/br0/forwarding", "0") }},
		{"the gateway's address", "(address 10.1.0.1/24 was removed from br0)", func() error {
			i := slices.IndexFunc(addrs, func(a rtnl.Addr) bool { return a.Prefix.String() == "10.1.0.1/24" })
			return host.Do(rtnl.DropAddr(br.Index, addrs[i]))
		}},
		{"a lease", "(the lease of 10.1.0.2 in network demo was deleted)", func() error { return os.Remove(lease) }},
		{"all leases", "(4 leases of network demo were deleted)", func() error { return os.RemoveAll(filepath.Dir(lease)) }},
		{"a lease in a new directory", "the lease of 10.1.0.2 in network demo was deleted", func() error { return os.Remove(lease) }},
	} {
		kerneltest.Until(r, "the watch of the directory of leases", func() bool { return follows(cmd, filepath.Dir(lease)) })
		r.restores(cmd, out, rules, e.cause, func() {
			if err := e.do(); err != nil {
				t.Fatal(err)
			}
		})
	}
	if out.count("two (demo): ") == out.count(reloaded) {
		t.Errorf("a lease of the one is restored for both:\n%s", out)
	}

	// What DEL deletes, and an address of another link, are no events: nothing is printed before that
	// of the lease, which counts.
	const cause = "(the lease of 10.1.0.2 in network demo was deleted)"
	printed := out.String()
	r.must("del", r.exec(nil, "del", "demo", two.Path, "--container-id", "two"))
	lo, err := host.Link("lo")
	if err != nil {
		t.Fatal(err)
	}
	other := rtnl.Addr{Prefix: netip.MustParsePrefix("192.0.2.9/32")}
	if err := errors.Join(host.AddAddr(lo.Index, other), host.Do(rtnl.DropAddr(lo.Index, other))); err != nil {
		t.Fatal(err)
	}
	r.restores(cmd, out, "", cause, func() {
		if err := os.Remove(lease); err != nil {
			t.Fatal(err)
		}
	})
	for line := range strings.Lines(strings.TrimPrefix(out.String(), printed)) {
		if !strings.HasPrefix(line, reloaded) || !strings.HasSuffix(line, cause+"\n") {
			t.Errorf("it prints more than what it repairs: %s", line)
		}
	}

	text, err := os.ReadFile(prom)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		fmt.Sprintf("cnibox_repairs_total{network=\"demo\",result=\"ok\"} %d\n", out.count(reloaded)+out.count("two (demo): ")),
		`cnibox_attachments{network="demo",state="alive"} 1` + "\n",
		"# EOF\n",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s has no %q:\n%s\n%s", prom, want, text, out)
		}
	}
	if info, err := os.Stat(prom); err != nil || info.Mode() != 0o644 {
		t.Errorf("%s is not for all to read: %v %v", prom, info, err)
	}
	for want, args := range map[string][]string{
		"none/cnibox.prom":         {"--watch", "--metrics", r.Path("none/cnibox.prom")},
		"--metrics is for --watch": {"--metrics", prom},
		"is not a regular file":    {"--watch", "--metrics", pipe},
		"link.prom":                {"--watch", "--metrics", r.Path("link.prom")},
	} {
		if a := r.exec(nil, append([]string{"reload"}, args...)...); a.exit == 0 || !strings.Contains(a.stderr, want) {
			t.Errorf("reload %s: exit code %d, want %q: %s", args, a.exit, want, a.stderr)
		}
	}
	if b, err := os.ReadFile(precious); err != nil || string(b) != "precious" {
		t.Errorf("a file of another directory is %q, %v", b, err)
	}
}

// newZoned makes a host whose network adds addresses to a zone of firewalld, and returns the
// variable with the bus's address.
func newZoned(t *testing.T, socket string) (r *reloading, bus string) {
	r = &reloading{world: newWorld(t)}
	r.write("net.d/demo.conflist", `{"cniVersion":"1.1.0","name":"demo","plugins":[
		{"type":"ptp","ipMasq":true,"ipam":{"type":"host-local","dataDir":"$DIR/leases","subnet":"10.1.0.0/24"}},
		{"type":"firewall","backend":"firewalld"}]}`)
	return r, "DBUS_SYSTEM_BUS_ADDRESS=unix:path=" + socket
}

// A failing bus is tried once for all attachments, and their rules do not wait for it.
func TestKernelReloadBadBus(t *testing.T) {
	socket, start := dbustest.Restartable(t)
	stop := start()
	dbustest.Start(t, socket)
	r, bus := newZoned(t, socket)
	for _, id := range []string{"one", "two"} {
		r.must("add", r.exec([]string{bus}, "add", "demo", r.Container(id).Path, "--container-id", id))
	}
	rules := nfttest.Ruleset(t, r.NS)
	r.must("nft", r.run("", nil, "nft", "flush", "ruleset"))
	stop()
	os.Remove(socket)
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	tries := make(chan int)
	go func() {
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				tries <- n
				return
			}
			if got, err := nfttest.Read(r.NS); err != nil || got != rules {
				t.Errorf("the rules wait for the bus: %v\n%s", err, got)
			}
			c.Close()
		}
	}()
	a := r.exec([]string{bus}, "reload")
	l.Close()
	if n := <-tries; n != 1 || a.exit != 1 || strings.Count(a.stdout, "D-Bus at "+socket) != 2 {
		t.Errorf("exit %d after %d tries: %s%s", a.exit, n, a.stdout, a.stderr)
	}
}

// The watch restores the sources of a zone after firewalld was started or reloaded, and after the
// bus was started later than the watch, or restarted.
func TestKernelReloadWatchFirewalld(t *testing.T) {
	socket, start := dbustest.Restartable(t)
	stop := start()
	r, bus := newZoned(t, socket)
	firewalld := dbustest.Start(t, socket)
	one := r.Container("one")
	r.must("add", r.exec([]string{bus}, "add", "demo", one.Path, "--container-id", "one"))
	const sources = "trusted 10.1.0.2/32"
	if got := firewalld.Sources(); got != sources {
		t.Fatalf("ADD: got %q, want %q", got, sources)
	}
	restored := func(after string) {
		t.Helper()
		kerneltest.Until(r, "the sources after "+after, func() bool { return firewalld.Sources() == sources })
	}
	stop()
	_, out := r.watch(bus)
	stop = start()
	firewalld = dbustest.Start(t, socket)
	restored("the start of a bus")
	firewalld.Reload()
	restored("a reload of firewalld")
	firewalld.Stop()
	firewalld = dbustest.Start(t, socket)
	restored("a start of firewalld")
	stop()
	start()
	firewalld = dbustest.Start(t, socket)
	restored("another start of the bus")
	for _, want := range []string{"firewalld has reloaded", "firewalld was started", "the system bus was started"} {
		if out.count(want) == 0 {
			t.Errorf("it has printed, and not %q:\n%s", want, out)
		}
	}
}
