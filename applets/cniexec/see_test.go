package cniexec

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/bridge"
	"github.com/cnibox/cnibox/applets/cniexec/inventory"
	"github.com/cnibox/cnibox/applets/hostlocal"
	"github.com/cnibox/cnibox/applets/macvlan"
	"github.com/cnibox/cnibox/applets/portmap"
	"github.com/cnibox/cnibox/applets/ptp"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/flock"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/state"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// plugins has those of the fixtures' configurations.
var plugins = applet.Table{&bridge.Applet, &hostlocal.Applet, &macvlan.Applet, &portmap.Applet, &ptp.Applet}

var update = flag.Bool("update", false, "rewrite golden files")

// A fixture is a cache, the namespaces of its entries, and the links of a host, which are not read
// from the kernel.
type fixture struct {
	*testing.T
	dir   string
	links []rtnl.Link
}

// madeAt is the modification time of all entries of a fixture.
var madeAt = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func newFixture(t *testing.T) *fixture {
	t.Chdir(t.TempDir()) // for equal paths and column widths in each run
	f := &fixture{T: t, dir: "state"}
	for _, dir := range []string{"results", "netns"} {
		if err := os.MkdirAll(filepath.Join(f.dir, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// netns creates a symbolic link to a live namespace and returns its path.
func (f *fixture) netns(name string) string {
	path := filepath.Join(f.dir, "netns", name)
	if err := os.Symlink(netns.Thread, path); err != nil && !errors.Is(err, os.ErrExist) {
		f.Fatal(err)
	}
	return path
}

// link adds a link of the host. An alias can make it that of an attachment.
func (f *fixture) link(l rtnl.Link) uint32 {
	l.Index, l.Up = uint32(len(f.links)+1), true
	f.links = append(f.links, l)
	return l.Index
}

// write writes an entry to the file that libcni uses.
func (f *fixture) write(e chain.Entry) {
	e.Kind = "cniCacheV1"
	doc, err := json.Marshal(e)
	file := filepath.Join(f.dir, "results", e.NetworkName+"-"+e.ContainerID+"-"+e.IfName)
	if err == nil {
		err = os.WriteFile(file, doc, 0o600)
	}
	if err == nil {
		err = os.Chtimes(file, madeAt, madeAt)
	}
	if err != nil {
		f.Fatal(err)
	}
}

// inventory returns what inventory.New would return on this host.
func (f *fixture) inventory() *inventory.Inventory {
	f.Helper()
	v := inventory.Empty(&chain.Cache{Dir: f.dir}, chain.NewDescriber(plugins.Plugin, f.dir))
	v.Now, v.Uptime = madeAt.Add(3*time.Hour), 24*time.Hour
	entries, broken, err := v.Cache.List()
	if err != nil {
		f.Fatal(err)
	}
	v.Broken, v.Links = broken, inventory.IndexLinks(f.links)
	for _, e := range entries {
		v.Entries = append(v.Entries, v.Read(e))
	}
	v.ReadStates(v.Entries)
	v.Sort()
	return v
}

// result returns a result with a host-side link and the interface.
func result(ifName, mac, host, netns string, addresses ...string) json.RawMessage {
	var ips []string
	for _, a := range addresses {
		ips = append(ips, fmt.Sprintf(`{"address":%q,"interface":1}`, a))
	}
	return fmt.Appendf(nil, `{"cniVersion":"1.0.0","interfaces":[{"name":%q},{"name":%q,"mac":%q,"sandbox":%q}],"ips":[%s]}`,
		host, ifName, mac, netns, strings.Join(ips, ","))
}

// runtimes returns a fixture with one attachment of each runtime, under the names that the runtime
// uses.
func runtimes(t *testing.T) *fixture {
	f := newFixture(t)
	bridge := []byte(`{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"bridge","bridge":"cni0","ipMasq":true,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.88.0.0/24"}]]}},{"type":"portmap","capabilities":{"portMappings":true}}]}`)
	cni0 := f.link(rtnl.Link{Name: "cni0", Kind: "bridge"})
	f.link(rtnl.Link{Name: "up0"})
	lease := func(n int, id string) {
		file := filepath.Join(f.dir, "networks", "pods", fmt.Sprintf("10.88.0.%d", n))
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(id+"\r\neth0"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	id := func(c string) string { return strings.Repeat(c, 64) }
	add := func(n int, e chain.Entry) {
		veth := fmt.Sprintf("veth%08d", n)
		e.NetworkName, e.IfName, e.Config = "pods", "eth0", bridge
		e.Result = result("eth0", fmt.Sprintf("02:00:00:00:00:%02d", n), veth, e.NetNS, fmt.Sprintf("10.88.0.%d/24", n))
		f.write(e)
		lease(n, e.ContainerID)
		f.link(rtnl.Link{Name: veth, Kind: "veth", Master: cni0})
	}
	ports := map[string]json.RawMessage{"portMappings": json.RawMessage(
		`[{"hostPort":8080,"containerPort":80,"protocol":"TCP"},{"hostPort":53,"containerPort":5353,"protocol":"udp","hostIP":"192.0.2.1"},{"hostPort":0,"containerPort":1}]`)}
	const uuid = "11111111-2222-3333-4444-555555555555"
	add(2, chain.Entry{ContainerID: id("a"), NetNS: f.netns("cni-" + uuid), CapabilityArgs: ports,
		Args: [][2]string{{"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", "web"}}})
	add(3, chain.Entry{ContainerID: id("b"), NetNS: f.netns(uuid), Args: [][2]string{{"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", "db"}}})
	add(4, chain.Entry{ContainerID: id("c"), NetNS: f.netns("netns-" + uuid), Args: [][2]string{{"K8S_POD_NAME", "romantic_bell"}}})
	add(5, chain.Entry{ContainerID: "cnitool-0123456789abcdef0123", NetNS: f.netns("blue")})
	add(6, chain.Entry{ContainerID: id("e"), NetNS: filepath.Join(f.dir, "netns", "gone")})

	// An attachment by cni-exec, whose links have labels.
	own := chain.Entry{NetworkName: "pods", ContainerID: "cnirun-0123456789ab", IfName: "eth0", NetNS: f.netns("own"), Config: bridge, BootID: state.BootID()}
	own.Result = result("eth0", "02:00:00:00:00:07", "veth00000007", own.NetNS, "10.88.0.7/24")
	f.write(own)
	lease(7, own.ContainerID)
	f.link(rtnl.Link{Name: "veth00000007", Kind: "veth", Master: cni0, Alias: own.Attachment().Label(255)})
	f.link(rtnl.Link{Name: "bwp000000007", Kind: "ifb", Alias: own.Attachment().Label(255)}) // from bandwidth, for egress
	if err := os.WriteFile(filepath.Join(f.dir, "results", "pods-half-eth0"), []byte(`{"kind":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(filepath.Join(f.dir, "results", "pods-half-eth0"), madeAt, madeAt); err != nil {
		t.Fatal(err)
	}
	return f
}

// The text and JSON output of verbs, for the attachments of all runtimes.
func TestSeeGolden(t *testing.T) {
	kerneltest.Native(t)
	testdata, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	f := runtimes(t)
	v := f.inventory()
	var out, stderr bytes.Buffer
	c := &call{Process: applet.Process{Stdout: &out, Stderr: &stderr, Getenv: noEnv}, options: options{flags: flags{cacheDir: f.dir, confDir: f.dir + "/none"}}}
	networks := c.knownNetworks(v)
	show := func(output string, n *inventory.Network) func() (int, error) {
		return func() (int, error) { c.output = output; return c.showNetwork(t.Context(), v, n) }
	}
	tests := map[string]func() (int, error){
		"ls.txt":            func() (int, error) { return (&lsCall{call: c}).lsAttachments(t.Context(), v) },
		"ls-wide.txt":       func() (int, error) { c.output = outputWide; return (&lsCall{call: c}).lsAttachments(t.Context(), v) },
		"ls.json":           func() (int, error) { c.output = outputJSON; return (&lsCall{call: c}).lsAttachments(t.Context(), v) },
		"networks.txt":      func() (int, error) { return (&lsCall{call: c}).lsNetworks(t.Context(), v) },
		"networks-wide.txt": func() (int, error) { c.output = outputWide; return (&lsCall{call: c}).lsNetworks(t.Context(), v) },
		"networks.json":     func() (int, error) { c.output = outputJSON; return (&lsCall{call: c}).lsNetworks(t.Context(), v) },
		"show-network.txt":  show("", networks[0]),
		"show-network.json": show(outputJSON, networks[0]),
		"show.txt":          func() (int, error) { return c.write(c.fields(fieldsOf(v, v.Entries[2]))) },
		"tree.txt":          func() (int, error) { return (&treeCall{call: c}).drawTree(branches(v, networks, routes)) },
		"tree.json": func() (int, error) {
			v.ReadHolds(t.Context(), v.Entries)
			return c.writeJSON(treeOf(v, branches(v, networks, routes)))
		},
		"tree.dot": func() (int, error) { return (&treeCall{call: c, dot: true}).drawTree(branches(v, networks, routes)) },
		"who.json": func() (int, error) {
			q := &query{call: c, Inventory: v, text: "10.88.0.2", kind: kindAddress, owners: v.Entries[:1], others: []string{"the host's, on bridge cni0"}}
			return c.writeJSON(q.doc())
		},
	}
	for name, print := range tests {
		out.Reset()
		c.output = ""
		if _, err := print(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		got := out.String()
		if strings.HasSuffix(name, ".json") && !json.Valid(out.Bytes()) {
			t.Errorf("%s is not JSON", name)
		}
		file := filepath.Join(testdata, name)
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(file); err != nil || string(want) != got {
			t.Errorf("%s: %v\n%s", name, err, kerneltest.Diff(string(want), got))
		}
	}
	if stderr.Len() > 0 {
		t.Errorf("stderr: %s", &stderr)
	}
}

// routes are the routes and addresses of the host in runtimes.
var routes = hostRoutes{uplinks: []uint32{2}, addrs: map[uint32][]rtnl.Addr{
	1: {{Prefix: netip.MustParsePrefix("10.88.0.1/24")}, {Prefix: netip.MustParsePrefix("fe80::1/64")}},
	2: {{Prefix: netip.MustParsePrefix("192.0.2.10/24")}},
}}

// 60 dual-stack containers on three bridges fit into 80 columns without truncation.
func TestSeeTreeFits(t *testing.T) {
	kerneltest.Native(t)
	f := newFixture(t)
	for n := range 3 {
		f.link(rtnl.Link{Name: fmt.Sprintf("cni%d", n), Kind: "bridge"})
	}
	for n := range 60 {
		bridge := fmt.Sprintf("cni%d", n%3)
		e := chain.Entry{NetworkName: fmt.Sprintf("net%d", n%3), ContainerID: fmt.Sprintf("container-%02d", n), IfName: "eth0", NetNS: f.netns("ns")}
		e.Config = fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":%q,"plugins":[{"type":"bridge","bridge":%q},{"type":"portmap","capabilities":{"portMappings":true}}]}`, e.NetworkName, bridge)
		e.CapabilityArgs = map[string]json.RawMessage{"portMappings": fmt.Appendf(nil, `[{"hostPort":%d,"containerPort":80}]`, 10000+n)}
		veth := fmt.Sprintf("veth%08x", n)
		e.Result = result("eth0", "02:00:00:00:00:01", veth, e.NetNS, fmt.Sprintf("10.88.%d.%d/24", n%3, 100+n), fmt.Sprintf("fd00:88:%d::%x/64", n%3, 100+n))
		f.write(e)
		f.link(rtnl.Link{Name: veth, Kind: "veth", Master: uint32(n%3 + 1)})
	}
	v := f.inventory()
	var out bytes.Buffer
	c := &call{Process: applet.Process{Stdout: &out, Stderr: io.Discard, Getenv: noEnv}}
	if _, err := (&treeCall{call: c}).drawTree(branches(v, c.knownNetworks(v), hostRoutes{})); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 63 {
		t.Errorf("%d lines, want 63:\n%s", len(lines), &out)
	}
	for _, line := range lines {
		if utf8.RuneCountInString(line) > 80 || strings.Contains(line, "~") {
			t.Errorf("%q does not fit", line)
		}
	}
}

// The output is as wide as the terminal, and coloured unless NO_COLOR is set.
func TestSeeFitsTerminal(t *testing.T) {
	kerneltest.Native(t)
	f := runtimes(t)
	const fault = "rule set: missing: tcp dport 8080 -> 10.88.0.5:80, udp dport 5353 -> 10.88.0.5:5353"
	faulty := false // CHECK has found the fault in the first entry
	show := func(width uint16, env ...string) string {
		master, slave := kerneltest.Terminal(t)
		if err := unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: width}); err != nil {
			t.Fatal(err)
		}
		shown := make(chan []byte)
		go func() {
			out, _ := io.ReadAll(master) // EIO when the slave is closed
			shown <- out
		}()
		getenv := func(key string) string {
			for _, pair := range env {
				if name, value, _ := strings.Cut(pair, "="); name == key {
					return value
				}
			}
			return ""
		}
		c := &call{Process: applet.Process{Stdout: slave, Getenv: getenv}}
		v := f.inventory()
		if faulty {
			v.Entries[0].Verdict, v.Entries[0].Fault = chain.StateFault, errors.New(fault)
		}
		if _, err := (&lsCall{call: c}).lsAttachments(t.Context(), v); err != nil {
			t.Error(err)
		}
		slave.Close()
		return strings.ReplaceAll(string(<-shown), "\r\n", "\n")
	}
	longest := func(text string) (n int) {
		for line := range strings.Lines(strings.NewReplacer("\x1b[31m", "", "\x1b[m", "").Replace(text)) {
			n = max(n, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")))
		}
		return n
	}
	if text := show(60); longest(text) > 76 || !strings.Contains(text, "~") { // columns that are not truncated need 76
		t.Errorf("60 columns:\n%s", text)
	}
	if text := show(200); longest(text) <= 80 || !strings.Contains(text, "02:00:00:00:00:02") || strings.Contains(text, "~") {
		t.Errorf("200 columns:\n%s", text)
	}
	if text := show(200); !strings.Contains(text, "\x1b[31mgone: no namespace state/netns/gone\x1b[m") {
		t.Errorf("what is gone is not red:\n%q", text)
	}
	if text := show(200, "NO_COLOR=1") + show(200, "TERM=dumb"); strings.Contains(text, "\x1b") {
		t.Errorf("there is colour:\n%q", text)
	}
	faulty = true
	if text := show(60); !strings.Contains(text, "\x1b[31mfault\x1b[m") || !strings.Contains(text, "\nblue (pods): "+fault+"\n  cni-exec reload blue\n") {
		t.Errorf("a fault is cut, or not on a line of its own:\n%q", text)
	}
	faulty = false
	if text := show(200, "COLUMNS=80", "LANG=de_DE.UTF-8"); longest(text) > 80 || !strings.Contains(text, "…") {
		t.Errorf("COLUMNS=80:\n%s", text)
	}
}

// Names from the kernel or a file cannot control a terminal.
func TestPrintableReplacesControls(t *testing.T) {
	if got := spec.Printable("a\x1b[31mb\x07\xffc\n"); got != "a?[31mb??c?" {
		t.Errorf("got %q", got)
	}
}

// Entries that another runtime deletes or writes while they are read are not faults.
func TestRecheck(t *testing.T) {
	locks := filepath.Join("cnibox", "locks")
	remove := func(f *fixture, a *inventory.Entry) {
		if err := os.Remove(a.File()); err != nil {
			f.Error(err)
		}
	}
	lock := func(f *fixture, a *inventory.Entry) {
		dir := filepath.Join(f.dir, locks)
		err := os.MkdirAll(dir, 0o700)
		if err == nil {
			var unlock func()
			unlock, err = flock.Lock(f.Context(), filepath.Join(dir, "container-"+a.ContainerID), 0o600, unix.LOCK_EX)
			f.Cleanup(unlock)
		}
		if err != nil {
			f.Error(err)
		}
	}
	tests := map[string]struct {
		before, meanwhile func(*fixture, *inventory.Entry) // the first reading, the second
		want              string                           // state; "": not listed
	}{
		"deleted":             {before: remove},
		"deleted again":       {meanwhile: remove},
		"a verb runs":         {before: lock, want: chain.StateBusy},
		"a verb runs by then": {meanwhile: lock, want: chain.StateBusy},
		"nothing happens":     {want: chain.StateGone},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := runtimes(t)
			v := f.inventory()
			a := v.Entries[slices.IndexFunc(v.Entries, func(a *inventory.Entry) bool { return a.State == chain.StateGone })]
			if err := os.Chtimes(a.File(), v.Now, v.Now); err != nil {
				t.Fatal(err)
			}
			if tt.before != nil {
				tt.before(f, a)
			}
			before := len(v.Entries)
			v.Recheck(func() {
				if tt.meanwhile != nil {
					tt.meanwhile(f, a)
					tt.meanwhile = nil
				}
			})
			got := ""
			if slices.Contains(v.Entries, a) {
				got = a.State
			} else if len(v.Entries) != before-1 {
				t.Errorf("%d of %d attachments are left", len(v.Entries), before)
			}
			if got != tt.want {
				t.Errorf("got state %q, want %q", got, tt.want)
			}
		})
	}
}

// A lease is not stale if ADD made it after the entries were read, or while an entry is unreadable.
func TestSeeStaleLeases(t *testing.T) {
	kerneltest.Native(t)
	f := runtimes(t)
	v := f.inventory()
	stale := func() string {
		t.Helper()
		pools, err := v.Pools(&inventory.Network{Name: "pods", Conf: v.Entries[0].Conf, Attached: v.Entries})
		if err != nil || len(pools) != 1 {
			t.Fatalf("%d range sets, %v", len(pools), err)
		}
		return fmt.Sprint(pools[0].Used, pools[0].Stale)
	}
	if got := stale(); got != "6 [10.88.0.6]" {
		t.Errorf("got %s", got)
	}
	f.write(chain.Entry{NetworkName: "pods", ContainerID: "new", IfName: "eth0", NetNS: f.netns("new")})
	for addr, id := range map[string]string{"10.88.0.8": "new", "10.88.0.9": "lost"} {
		if err := os.WriteFile(filepath.Join(f.dir, "networks", "pods", addr), []byte(id+"\r\neth0"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := stale(); got != "8 [10.88.0.6 10.88.0.9]" {
		t.Errorf("with an ADD: got %s", got)
	}
}

// The age is empty if the clock was wrong: a board without a battery starts in 1970 and sets it
// later.
func TestAgeOfWrongClock(t *testing.T) {
	v := &inventory.Inventory{Now: madeAt, Uptime: time.Hour}
	tests := map[string]struct {
		ago   time.Duration
		state string
		boot  string
		want  string
	}{
		"seconds":                {119 * time.Second, chain.StateAlive, "", "119s"},
		"minutes":                {59*time.Minute + 59*time.Second, chain.StateAlive, "", "59m"},
		"hours":                  {47 * time.Hour, chain.StateGone, "", "47h"},
		"days":                   {50 * time.Hour, chain.StateGone, "", "2d"},
		"of an earlier boot":     {50 * time.Hour, chain.StateGone, "another", "2d"},
		"the clock was set":      {50 * time.Hour, chain.StateGone, state.BootID(), ""},
		"the clock was set back": {-time.Second, chain.StateAlive, "", ""},
		"another runtime's":      {50 * time.Hour, chain.StateAlive, "", ""},
	}
	for name, tt := range tests {
		a := &inventory.Entry{Entry: &chain.Entry{BootID: tt.boot}, Since: madeAt.Add(-tt.ago), State: tt.state}
		if got := v.AgeText(a); got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}

// Runtimes pass the port mappings of a container to each of its networks, but only portmap uses
// them.
func TestPortsOnlyWithPortmap(t *testing.T) {
	ports := map[string]json.RawMessage{"portMappings": json.RawMessage(`[{"hostPort":80,"containerPort":8080},{"hostPort":0,"containerPort":1}]`)}
	v := inventory.Empty(nil, chain.NewDescriber(plugins.Plugin, ""))
	for conf, want := range map[string]int{
		`{"plugins":[{"type":"bridge"},{"type":"portmap","capabilities":{"portMappings":true}}]}`: 1,
		`{"plugins":[{"type":"macvlan"}]}`: 0,
		`{"plugins":`:                      1,
	} {
		if a := v.Read(&chain.Entry{Config: []byte(conf), CapabilityArgs: ports}); len(a.Ports) != want {
			t.Errorf("%s: got %v, want %d", conf, a.Ports, want)
		}
	}
}

// A container counts once if it has an address of each family, also if its leases are stale.
func TestSeeDualStackCountedOnce(t *testing.T) {
	kerneltest.Native(t)
	f := newFixture(t)
	f.write(chain.Entry{NetworkName: "dual", ContainerID: "c1", IfName: "eth0", NetNS: f.netns("ns"), Config: []byte(`{"name":"dual","plugins":[
		{"type":"ptp","ipam":{"type":"host-local","ranges":[[{"subnet":"10.88.0.0/24"}],[{"subnet":"fd00:88::/64"}]]}}]}`)})
	for _, addr := range []string{"10.88.0.2", "fd00:88::2"} {
		file := filepath.Join(f.dir, "networks", "dual", addr)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte("lost\r\neth0"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	c := &call{Process: applet.Process{Stdout: &out, Stderr: io.Discard, Getenv: noEnv}}
	if _, err := (&lsCall{call: c}).lsNetworks(t.Context(), f.inventory()); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(strings.Fields(out.String()), " "); !strings.HasSuffix(got, " 1 252 1 1 0") {
		t.Errorf("got %s", got)
	}
}

// The name is the one that the runtime shows to users.
func TestContainerName(t *testing.T) {
	pod := [][2]string{{"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", "web"}}
	for _, tt := range []struct {
		id, netns string
		args      [][2]string
		want      string
	}{
		{"c1", "/run/netns/x", nil, "c1"},
		{strings.Repeat("a", 64), "/var/run/netns/cni-1", nil, "aaaaaaaaaaaa"},
		{strings.Repeat("a", 64), "/var/run/netns/cni-1", pod, "default/web"},
		{"c1", "", pod[1:], "web"},
		{"cnitool-0123456789abcdef0123", "/run/netns/blue", nil, "blue"},
		{"cnitool-0123456789abcdef0123", "/proc/4711/ns/net", nil, "pid 4711"},
		{"cnitool-0123456789abcdef0123", "/proc/self/ns/net", nil, "net"},
		{"cnitool-0123456789abcdef0123", "", nil, "cnitool-0123456789abcdef0123"},
		{"cnirun-0123456789ab", "/proc/4711/fd/4", nil, "pid 4711"},
		{"cnirun-0123456789ab", "/proc/4711/ns/net", nil, "pid 4711"},
		{"cnirun-web", "/proc/4711/fd/4", nil, "web"},
	} {
		a := &inventory.Entry{Entry: &chain.Entry{ContainerID: tt.id, NetNS: tt.netns, Args: tt.args}}
		if got := a.Name(); got != tt.want {
			t.Errorf("%s in %s: got %q, want %q", tt.id, tt.netns, got, tt.want)
		}
	}
}

// A container is found by its ID, a prefix of it, and its names.
func TestFindContainer(t *testing.T) {
	f := runtimes(t)
	v := f.inventory()
	tests := map[string]string{ // prefix of the ID or of the error
		strings.Repeat("a", 64): "aaaa", "aaaa": "aaaa", "default/web": "aaaa", "romantic_bell": "cccc", "blue": "cnitool-",
		f.dir + "/netns/own": "cnirun-", "aaa": `"aaa" is neither`, "zzzz": `"zzzz" is neither`, "cni": `"cni" is neither`,
	}
	for name, want := range tests {
		found, err := v.Find(name)
		got := ""
		if err != nil {
			got = spec.AsError(err).Msg
		} else if len(found) == 1 {
			got = found[0].ContainerID
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

// The syntax of an operand determines its kind.
func TestWhoOperandKind(t *testing.T) {
	kerneltest.Native(t)
	tests := map[string]string{
		"10.1.0.2": kindAddress, "10.1.0.2/24": kindAddress, "fd00::2": kindAddress, "[fd00::2]": kindAddress, "::ffff:10.1.0.2": kindAddress,
		"02:00:00:00:00:02": kindMAC, "02-00-00-00-00-02": kindMAC, "tcp/80": kindPort, "UDP/53": kindPort, "80/tcp": kindPort,
		"/proc/self/ns/net": kindNetNS, "/nosuch": kindNetNS, "./x": kindNetNS, "veth1234": kindLink, "lo": kindLink, "tcp": kindLink,
	}
	for text, want := range tests {
		q := &query{Inventory: new(inventory.Inventory), text: text}
		if err := q.read(); err != nil || q.kind != want {
			t.Errorf("%s: got %q, %v, want %q", text, q.kind, err, want)
		}
	}
	for _, text := range []string{"tcp/0", "tcp/65536", "0/udp", "sctp/x"} {
		if err := (&query{Inventory: new(inventory.Inventory), text: text}).read(); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
}

// It is not an error if the reader of stdout, such as head(1), has exited.
func TestClosedPipe(t *testing.T) {
	f := runtimes(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	r.Close()
	var stderr bytes.Buffer
	c := &call{Process: applet.Process{Stdout: w, Stderr: &stderr, Getenv: noEnv}}
	if exit, err := (&lsCall{call: c}).lsAttachments(t.Context(), f.inventory()); exit != exitOK || err != nil || stderr.Len() > 0 {
		t.Errorf("exit code %d, %v, stderr %q", exit, err, &stderr)
	}
}
