package upgrade

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
	"github.com/cnibox/cnibox/test/product"
)

// A node is a host with the plugins in a directory, networks, and a neighbour on its LAN. Its
// namespaces are those of this process.
type node struct {
	*applettest.Host
	lan             *netns.NS
	networks        []*network
	firewallBackend string // firewall's backend in one network
	before          string // the host before any container
	rules           string
}

// A network is a configuration. Its containers are attached by cni-exec, or by a runtime that
// starts each plugin.
type network struct {
	name    string
	exec    bool // attached by cni-exec
	plugins []map[string]any
	version string
	bridge  string // empty: none
	ports   bool   // it publishes ports
	direct  bool   // its containers are on the LAN
}

// A pod is a container with one network.
type pod struct {
	*network
	applettest.Container
	port    int // of the host; 0: none is published
	result  json.RawMessage
	v4, v6  netip.Addr
	streams []*stream
	server  net.Listener
}

const (
	upgradeHost4, upgradeHost6 = "192.0.2.1", "2001:db8::1"
	upgradeLAN4, upgradeLAN6   = "192.0.2.2", "2001:db8::2"
)

// newNode makes the host, with the earlier binary installed.
func newNode(t *testing.T, forwardDrops bool) *node {
	t.Helper()
	n := bareNode(t)
	n.firewallBackend = "nftables"
	if forwardDrops { // like Docker: forwards only what a rule accepts
		n.firewallBackend = ""
		for _, family := range []string{"ip", "ip6"} {
			n.nft("add table " + family + " filter; add chain " + family + " filter FORWARD { type filter hook forward priority filter; policy drop; }")
		}
	}
	n.lan = kerneltest.NS(t)
	kerneltest.LoUp(t, n.lan)
	kerneltest.AddLink(t, n.NS, rtnl.LinkSpec{Name: "up0", Up: true, Peer: &rtnl.LinkSpec{Name: "eth0", NS: n.lan}})
	kerneltest.Address(t, n.NS, "up0", upgradeHost4+"/24", upgradeHost6+"/64")
	kerneltest.Address(t, n.lan, "eth0", upgradeLAN4+"/24", upgradeLAN6+"/64", "198.51.100.1/24")
	n.EchoLines(n.lan, "the LAN")
	for i := range 8 { // for host-device
		kerneltest.AddLink(t, n.NS, rtnl.LinkSpec{Name: fmt.Sprintf("nic%d", i), Peer: &rtnl.LinkSpec{Name: "eth0", NS: kerneltest.NS(t)}})
	}
	for _, byExec := range []bool{false, true} {
		n.define(byExec)
	}
	if forwardDrops { // a container was there before: CNI-FORWARD of 9f333ea stays, like the reference's
		p := n.attach(n.networks[0], "first", 7000)
		if err := errors.Join(n.del(p), kerneltest.Dial(t, n.NS).DelLink(p.bridge)); err != nil {
			t.Fatal(err)
		}
	}
	n.before, n.rules = kerneltest.Snapshot(t, n.NS), n.ruleset()
	return n
}

// bareNode makes a host without networks and without a LAN.
func bareNode(t *testing.T) *node {
	t.Helper()
	n := &node{Host: &applettest.Host{T: t, Dir: t.TempDir(), Here: true}}
	err := errors.Join(
		unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, ""),
		unix.Mount(os.Getenv(upgradeDisk), "/var/lib", "", unix.MS_BIND, ""),
		unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""),
		unix.Mount(os.Getenv("CNIBOX_UPGRADE_BOOT"), "/proc/sys/kernel/random/boot_id", "", unix.MS_BIND, ""),
		os.Mkdir(n.Path("bin"), 0o755),
		os.Mkdir(n.Path("net.d"), 0o755),
	)
	for _, name := range product.Names() {
		if name != "cnibox" {
			err = errors.Join(err, os.Symlink("cnibox", n.Path("bin/"+name)))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	n.install(upgradeFrom)
	n.NS, err = netns.Open("/proc/self/ns/net")
	n.NoError(err)
	t.Cleanup(func() { n.NS.Close() })
	kerneltest.LoUp(t, n.NS)
	for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if err := n.NS.SetSysctl(key, "1"); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// install replaces the binary of all links atomically.
func (n *node) install(binary string) {
	n.Helper()
	err := os.Symlink(binary, n.Path("bin/.new"))
	if err == nil {
		err = os.Rename(n.Path("bin/.new"), n.Path("bin/cnibox"))
	}
	if err != nil {
		n.Fatal(err)
	}
}

// upgrade installs this binary.
func (n *node) upgrade() {
	n.Helper()
	self, err := os.Executable()
	if err != nil {
		n.Fatal(err)
	}
	n.install(self)
}

// define adds the networks of one way to attach. It skips those that this kernel does not support.
func (n *node) define(byExec bool) {
	n.Helper()
	letter, third := "p", 1
	if byExec {
		letter, third = "x", 2
	}
	local := func(second int) map[string]any {
		return map[string]any{"type": "host-local",
			"ranges": []any{
				[]any{map[string]any{"subnet": fmt.Sprintf("10.%d.%d.0/24", second, third), "rangeStart": fmt.Sprintf("10.%d.%d.50", second, third), "rangeEnd": fmt.Sprintf("10.%d.%d.59", second, third)}},
				[]any{map[string]any{"subnet": fmt.Sprintf("fd00:%d:%d::/64", second, third)}}},
			"routes": []any{map[string]any{"dst": "0.0.0.0/0"}, map[string]any{"dst": "::/0"}}}
	}
	ports := map[string]any{"type": "portmap", "capabilities": map[string]any{"portMappings": true}}
	rates := map[string]any{"type": "bandwidth", "ingressRate": 800000000, "ingressBurst": 80000000, "egressRate": 800000000, "egressBurst": 80000000}
	settings := map[string]any{"type": "tuning", "mtu": 1400, "sysctl": map[string]any{"net.ipv4.conf.IFNAME.arp_filter": "1", "net.core.somaxconn": "500"}}
	firewall := map[string]any{"type": "firewall"}

	n.network(&network{name: "pods" + letter, exec: byExec, version: "1.1.0", bridge: "pods" + letter, ports: true}, []map[string]any{
		{"type": "bridge", "bridge": "pods" + letter, "isGateway": true, "ipMasq": true, "hairpinMode": true, "ipam": local(1)},
		ports, firewall, rates, settings})
	n.network(&network{name: "tight" + letter, exec: byExec, version: "1.1.0", bridge: "tight" + letter, ports: true}, []map[string]any{
		{"type": "bridge", "bridge": "tight" + letter, "isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": "nftables", "macspoofchk": true, "portIsolation": true, "ipam": local(2)},
		{"type": "portmap", "backend": "nftables", "capabilities": map[string]any{"portMappings": true}},
		{"type": "firewall", "backend": n.firewallBackend, "ingressPolicy": "same-bridge"}})
	n.network(&network{name: "routed" + letter, exec: byExec, version: "1.0.0", ports: true}, []map[string]any{
		{"type": "ptp", "ipMasq": true, "ipam": local(3)}, ports, firewall, rates, {"type": "sbr"}})
	subnets := n.Path("subnet-" + letter)
	if err := os.WriteFile(subnets, fmt.Appendf(nil, "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.%d.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n", third), 0o600); err != nil {
		n.Fatal(err)
	}
	n.network(&network{name: "flannel" + letter, exec: byExec, version: "0.4.0", bridge: "flannel" + letter, ports: true}, []map[string]any{
		{"type": "flannel", "subnetFile": subnets, "delegate": map[string]any{"bridge": "flannel" + letter, "isDefaultGateway": true}}, ports, firewall})
	n.network(&network{name: "device" + letter, exec: byExec, version: "1.1.0"}, []map[string]any{
		{"type": "host-device", "device": "nic" + fmt.Sprint(third), "ipam": map[string]any{"type": "static", "addresses": []any{map[string]any{"address": "10.7.0.2/24"}}}},
		{"type": "tuning", "mac": "02:00:00:00:07:02"}})
	segment := map[string]any{"type": "host-local", "ranges": []any{[]any{map[string]any{"subnet": "198.51.100.0/24", "gateway": "198.51.100.1",
		"rangeStart": fmt.Sprintf("198.51.100.%d", 50*third), "rangeEnd": fmt.Sprintf("198.51.100.%d", 50*third+9)}}},
		"routes": []any{map[string]any{"dst": "0.0.0.0/0"}}}
	moved := []map[string]any{{"type": "macvlan", "master": "up0", "ipam": segment}, {"type": "sbr"}, {"type": "tuning", "mtu": 1300}}
	if n.has("CONFIG_MACVLAN", rtnl.Macvlan{}) {
		n.network(&network{name: "segment" + letter, exec: byExec, version: "1.1.0", direct: true}, moved)
	}
	if n.has("CONFIG_NET_VRF", rtnl.VRF{Table: 7}) {
		n.network(&network{name: "domain" + letter, exec: byExec, version: "1.1.0"}, []map[string]any{{"type": "ptp", "ipam": local(4)}, {"type": "vrf", "vrfname": "blue"}})
	}
}

// has reports whether this kernel supports a kind of link, and logs it if not.
func (n *node) has(feature string, kind rtnl.Kind) bool {
	n.Helper()
	c := kerneltest.Dial(n.T, kerneltest.NS(n.T))
	low, err := c.CreateLink(rtnl.LinkSpec{Name: "low", Peer: &rtnl.LinkSpec{Name: "wire"}})
	if err == nil {
		err = c.AddLink(rtnl.LinkSpec{Name: "probe", Kind: kind, Parent: low.Index})
	}
	if err != nil {
		n.Logf("SKIPPED: a part of the upgrade: this kernel lacks %s: %v", feature, err)
	}
	return err == nil
}

// network writes a configuration for cni-exec and records the network.
func (n *node) network(net *network, plugins []map[string]any) {
	n.Helper()
	net.plugins = plugins
	text, err := json.Marshal(map[string]any{"cniVersion": net.version, "name": net.name, "plugins": plugins})
	if err == nil {
		err = os.WriteFile(n.Path("net.d/"+net.name+".conflist"), text, 0o600)
	}
	if err != nil {
		n.Fatal(err)
	}
	n.networks = append(n.networks, net)
}

// pod makes a container without a network.
func (n *node) pod(net *network, id string, port int) *pod {
	n.Helper()
	p := &pod{network: net, Container: n.Container(id + "-" + net.name)}
	if net.ports {
		p.port = port
	}
	p.server = n.EchoLines(p.NS, p.ID)
	return p
}

// end ends the container and deletes its namespace without calling a plugin. An open socket would
// keep the namespace.
func (n *node) end(p *pod) {
	n.Helper()
	p.hangUp()
	n.NoError(p.server.Close())
	n.End(p.Container)
	n.NoError(os.Remove(p.Path))
}

// attach makes a container and attaches it.
func (n *node) attach(net *network, id string, port int) *pod {
	n.Helper()
	p := n.pod(net, id, port)
	if err := n.add(p); err != nil {
		n.Fatal(err)
	}
	return p
}

// mappings are the capability arguments of a container.
func (p *pod) mappings() []any {
	return []any{map[string]any{"hostPort": p.port, "containerPort": 80, "protocol": "tcp"}}
}

// call starts a program of the node, and returns its stdout.
func (n *node) call(stdin []byte, env []string, argv ...string) ([]byte, error) {
	exit, out, diag, err := n.Process(exec.Command(n.Path("bin/"+argv[0]), argv[1:]...), string(stdin), env...)
	if err == nil && exit != 0 {
		err = fmt.Errorf("exit code %d: %s%s", exit, out, diag)
	}
	if err != nil {
		return nil, fmt.Errorf("%q %q: %w", env, argv, err)
	}
	return []byte(out), nil
}

// plugin calls one plugin of a network.
func (n *node) plugin(verb string, net *network, i int, p *pod, more map[string]any) ([]byte, error) {
	conf := map[string]any{"cniVersion": net.version, "name": net.name}
	maps.Copy(conf, net.plugins[i])
	env := []string{"CNI_COMMAND=" + verb}
	if p != nil {
		env = p.Env(spec.Verb(verb))
		if conf["capabilities"] != nil && p.port != 0 {
			conf["runtimeConfig"] = map[string]any{"portMappings": p.mappings()}
		}
		if p.result != nil {
			conf["prevResult"] = p.result
		}
	}
	maps.Copy(conf, more)
	stdin, err := json.Marshal(conf)
	if err != nil {
		return nil, err
	}
	return n.call(stdin, env, conf["type"].(string))
}

// cniExec calls a verb of cni-exec for a container.
func (n *node) cniExec(verb string, p *pod) ([]byte, error) {
	var env []string
	if p.port != 0 && verb == "add" {
		ports, err := json.Marshal(map[string]any{"portMappings": p.mappings()})
		if err != nil {
			return nil, err
		}
		env = append(env, "CAP_ARGS="+string(ports))
	}
	return n.call(nil, env, "cni-exec", verb, "--conf-dir", n.Path("net.d"), "--container-id", p.ID, p.name, p.Path)
}

func (n *node) add(p *pod) (err error) {
	var out []byte
	if p.exec {
		out, err = n.cniExec("add", p)
	}
	for i := 0; !p.exec && i < len(p.plugins) && err == nil; i++ {
		out, err = n.plugin("ADD", p.network, i, p, nil)
		if err == nil {
			p.result = out
		}
	}
	if err != nil {
		return err
	}
	p.result = out
	var result struct {
		IPs      []struct{ Address netip.Prefix }
		IP4, IP6 struct{ IP netip.Prefix }
	}
	if err := json.Unmarshal(out, &result); err != nil {
		return err
	}
	for _, a := range result.IPs {
		if a.Address.Addr().Is4() {
			p.v4 = a.Address.Addr()
		} else {
			p.v6 = a.Address.Addr()
		}
	}
	return nil
}

func (n *node) check(p *pod) error {
	if p.exec {
		_, err := n.cniExec("check", p)
		return err
	}
	if p.version < "0.4.0" {
		return nil
	}
	for i := range p.plugins {
		if _, err := n.plugin("CHECK", p.network, i, p, nil); err != nil {
			return err
		}
	}
	return nil
}

func (n *node) del(p *pod) error {
	if p.exec {
		_, err := n.cniExec("del", p)
		return err
	}
	for i := range slices.Backward(p.plugins) {
		if _, err := n.plugin("DEL", p.network, i, p, nil); err != nil {
			return err
		}
	}
	return nil
}

// gc calls GC, which must keep the containers that are alive.
func (n *node) gc(net *network, alive []*pod) error {
	if net.exec {
		gc := []string{"cni-exec", "gc", "--conf-dir", n.Path("net.d"), net.name}
		_, err := n.call(nil, nil, gc...)
		if err != nil || len(net.its(alive)) == 0 {
			return err
		}
		// In a PID namespace of its own gc does not see all processes, and to a namespace without a veth the earlier release has
		// given no ID on the host: there gc keeps what is gone.
		gc = append(gc, "--all")
		for _, p := range net.its(alive) {
			gc = append(gc, "--keep", p.ID+"/eth0")
		}
		_, err = n.call(nil, nil, gc...)
		return err
	}
	if net.version < "1.1.0" {
		return nil
	}
	valid := []any{}
	for _, p := range net.its(alive) {
		valid = append(valid, map[string]any{"containerID": p.ID, "ifname": "eth0"})
	}
	var errs []error
	for i := range net.plugins {
		_, err := n.plugin("GC", net, i, nil, map[string]any{"cni.dev/valid-attachments": valid})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// its returns those of the pods that are on the network.
func (n *network) its(pods []*pod) (own []*pod) {
	for _, p := range pods {
		if p.network == n {
			own = append(own, p)
		}
	}
	return own
}

// each calls a verb for several containers.
func (n *node) each(what string, pods []*pod, verb func(*pod) error) {
	n.Helper()
	for _, p := range pods {
		if err := verb(p); err != nil {
			n.Errorf("%s of %s: %v", what, p.ID, err)
		}
	}
}

// gcAll calls GC of all networks.
func (n *node) gcAll(alive []*pod) {
	n.Helper()
	for _, net := range n.networks {
		if err := n.gc(net, alive); err != nil {
			n.Errorf("GC of %s: %v", net.name, err)
		}
	}
}

// checkClean deletes the bridges, whose route_localnet portmap leaves set, and checks that nothing of
// attachments is left.
func (n *node) checkClean() {
	n.Helper()
	c := kerneltest.Dial(n.T, n.NS)
	for _, net := range n.networks {
		if net.bridge == "" {
			continue
		}
		if err := c.DelLink(net.bridge); err != nil {
			n.Error(err)
		}
	}
	if diff := kerneltest.Diff(n.before, kerneltest.Snapshot(n.T, n.NS)); diff != "" {
		n.Errorf("the host is not as before:\n%s", diff)
	}
	if diff := kerneltest.Diff(permanent.ReplaceAllString(n.rules, ""), permanent.ReplaceAllString(n.ruleset(), "")); diff != "" {
		n.Errorf("the rule set is not as before:\n%s", diff)
	}
	n.noRecords()
}

// permanent matches the lines of [node.ruleset] that stay after the last container, as with the
// reference: firewall's chains in the tables filter, and the jumps between them.
var permanent = regexp.MustCompile(`(?m)^(table map\[family:ip6? name:filter\]|chain map\[family:ip6? .*name:(CNI-ADMIN|CNI-FORWARD|FORWARD) .*table:filter.*\]|rule map\[chain:(CNI-FORWARD|FORWARD) expr:\[map\[xt:map\[name:comment type:match\]\] map\[counter:<nil>\] map\[jump:map\[target:CNI-(ADMIN|FORWARD)\]\]\] family:ip6? table:filter\])(\n|\z)`)

// noRecords checks that no file of an attachment is left; locks of stores and networks may stay.
func (n *node) noRecords() {
	n.Helper()
	for _, root := range []string{"/run", "/var/lib"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			name := d.Name()
			switch {
			case err != nil:
				return err
			case name == ".cnibox": // index of the leases
				return fs.SkipDir
			case d.IsDir(), strings.HasSuffix(name, "lock"), strings.HasPrefix(name, "last_reserved_ip."),
				strings.Contains(path, "/locks/network-"):
				return nil
			}
			text, _ := os.ReadFile(path)
			n.Errorf("%s is left: %.300q", path, text)
			return nil
		})
		if err != nil {
			n.Error(err)
		}
	}
}

// nft runs nft(8), or skips the test without it.
func (n *node) nft(args ...string) string {
	n.Helper()
	out, err := exec.Command("nft", args...).CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		n.Skipf("SKIPPED: the upgrade from an earlier revision: %v", err)
	}
	if err != nil {
		n.Fatalf("nft %q: %v: %s", args, err, out)
	}
	return string(out)
}

// ruleset lists the tables and rules of other programs, without what their counters count, and the elements of our
// tables.
func (n *node) ruleset() string {
	n.Helper()
	var list struct{ NFTables []map[string]map[string]any }
	if err := json.Unmarshal([]byte(n.nft("-s", "-j", "list", "ruleset")), &list); err != nil {
		n.Fatal(err)
	}
	var lines []string
	for _, object := range list.NFTables {
		for kind, o := range object {
			ours := o["table"] == "cnibox" || kind == "table" && o["name"] == "cnibox"
			delete(o, "handle")
			switch elements, _ := o["elem"].([]any); {
			case kind == "metainfo":
			case ours && len(elements) > 0:
				lines = append(lines, fmt.Sprintf("elements of %s %s: %v", o["family"], o["name"], elements))
			case !ours:
				lines = append(lines, fmt.Sprint(kind, " ", o))
			}
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// daemon starts the DHCP daemon; stop ends it.
func (n *node) daemon() (stop func()) {
	n.Helper()
	var log bytes.Buffer
	cmd := exec.Command(n.Path("bin/dhcp"), "daemon")
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		n.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			n.Errorf("the daemon: %v: %s", err, &log)
		}
	})
	n.Cleanup(stop)
	kerneltest.Eventually(n.T, "a daemon", func() error {
		_, err := n.plugin("STATUS", n.networks[0], 0, nil, nil)
		return err
	})
	return stop
}
