package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// The underlay network of the nodes has a bridge and a router with etcd, and the router leads to
// the world. The world and the router have no route to pods: packets that return to a pod were
// masqueraded or sent to a published port. Addresses are those of RFC 5737 and 3849.
const (
	underlay = "underlay"
	outside  = "outside"
	etcdURL  = "http://192.0.2.1:2379"
)

var (
	routerAddrs  = [2]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8:1::1")}
	outsideAddrs = [2]netip.Addr{netip.MustParseAddr("198.51.100.9"), netip.MustParseAddr("2001:db8:2::9")}
)

func pinned(name string) namespace { return namespace("/run/netns/" + name) }

// A cluster is two nodes, the network between and outside them, and its daemons.
type cluster struct {
	bin, flanneldPath string
	etcd              *process
	nodes             []*node
	world             *server // outside
	processes         []*process
	proven            int
}

// newCluster makes the network without nodes.
func newCluster(bin, flanneld string) (*cluster, error) {
	c := &cluster{bin: bin, flanneldPath: flanneld}
	for _, name := range []string{underlay, outside} {
		if _, err := run("ip", "netns", "add", name); err != nil {
			return c, err
		}
	}
	_, err := feed(fmt.Sprintf(`link set lo up
link add lan address 02:00:00:00:00:01 type bridge
link set lan up
addr add %s/24 dev lan
addr add %s/64 dev lan nodad
link add up0 type veth peer name eth0 netns %s
link set up0 up
addr add 198.51.100.1/24 dev up0
addr add 2001:db8:2::1/64 dev up0 nodad
`, routerAddrs[0], routerAddrs[1], outside), "ip", "-n", underlay, "-batch", "-")
	if err != nil {
		return c, err
	}
	_, err = feed(fmt.Sprintf(`link set lo up
link set eth0 up
addr add %s/24 dev eth0
addr add %s/64 dev eth0 nodad
route add default via 198.51.100.1
route add default via 2001:db8:2::1
`, outsideAddrs[0], outsideAddrs[1]), "ip", "-n", outside, "-batch", "-")
	if err != nil {
		return c, err
	}
	if err := pinned(underlay).sysctls("net/ipv4/ip_forward=1", "net/ipv6/conf/all/forwarding=1"); err != nil {
		return c, err
	}
	c.world, err = serve(pinned(outside))
	return c, err
}

// startEtcd starts etcd with its stored data, and returns when it responds.
func (c *cluster) startEtcd() (err error) {
	// On architectures other than amd64 Debian's etcd starts only with the variable.
	c.etcd, err = c.start("etcd", "ip", "netns", "exec", underlay, "env", "ETCD_UNSUPPORTED_ARCH="+runtime.GOARCH,
		"etcd", "--data-dir="+filepath.Join(work, "etcd"), "--listen-client-urls="+etcdURL, "--advertise-client-urls="+etcdURL,
		"--listen-peer-urls=http://127.0.0.1:2380")
	if err != nil {
		return err
	}
	return eventually(func() error {
		if err := c.etcd.ended(); err != nil {
			return err
		}
		var health struct{ Health string }
		if err := askEtcd(http.MethodGet, "/health", nil, &health); err != nil {
			return err
		}
		if health.Health != "true" {
			return fmt.Errorf("etcd is not healthy: %+v", health)
		}
		return nil
	})
}

// askEtcd sends one request to etcd's JSON gateway.
func askEtcd(method, path string, question, answer any) error {
	body, err := json.Marshal(question)
	if err != nil {
		return err
	}
	return pinned(underlay).do(func() error {
		conn, err := net.DialTimeout("tcp", strings.TrimPrefix(etcdURL, "http://"), tryTime)
		if err != nil {
			return err
		}
		defer conn.Close()
		client := http.Client{Timeout: tryTime, Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext:       func(context.Context, string, string) (net.Conn, error) { return conn, nil },
		}}
		req, err := http.NewRequest(method, etcdURL+path, bytes.NewReader(body))
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("etcd: %s: %s", resp.Status, text)
		}
		if err == nil {
			err = json.Unmarshal(text, answer)
		}
		return err
	})
}

// setNetConf stores flannel's network configuration, and deletes the leases of nodes.
func (c *cluster) setNetConf(conf string) error {
	b64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	const prefix = "/coreos.com/network/"
	var ignored any
	err := askEtcd(http.MethodPost, "/v3/kv/deleterange", map[string]string{"key": b64(prefix), "range_end": b64("/coreos.com/network0")}, &ignored)
	if err != nil {
		return err
	}
	return askEtcd(http.MethodPost, "/v3/kv/put", map[string]string{"key": b64(prefix + "config"), "value": b64(conf)}, &ignored)
}

// startNodes boots two nodes with empty disks and installs the plugins. label is part of the disks'
// names.
func (c *cluster) startNodes(label string, ipMasq bool) error {
	if err := c.bootNodes(label, ipMasq); err != nil {
		return err
	}
	for _, n := range c.nodes {
		if err := n.install(c.bin); err != nil {
			return err
		}
	}
	return nil
}

// bootNodes boots two nodes with empty disks.
func (c *cluster) bootNodes(label string, ipMasq bool) error {
	c.nodes = nil
	for i := range 2 {
		n := &node{c: c, name: fmt.Sprintf("node%d", i+1), ipMasq: ipMasq,
			disk: filepath.Join(work, fmt.Sprintf("%s-node%d", label, i+1)),
			addrs: [2]netip.Addr{
				netip.AddrFrom4([4]byte{192, 0, 2, byte(11 + i)}),
				netip.MustParseAddr(fmt.Sprintf("2001:db8:1::%d", 11+i)),
			}}
		if err := n.boot(); err != nil {
			return err
		}
		c.nodes = append(c.nodes, n)
	}
	return nil
}

// stop ends all daemons; their remaining children end with this process.
func (c *cluster) stop() {
	for _, p := range c.processes {
		p.kill()
	}
}

// step calls fn and prints the text and the time it took. The last line before an error shows where
// the run failed.
func (c *cluster) step(text string, fn func() error) error {
	begin := time.Now()
	if err := fn(); err != nil {
		fmt.Println("FAIL", text)
		return fmt.Errorf("%s: %w", text, err)
	}
	c.proven++
	fmt.Printf("  ok   %-91s %6d ms\n", text, time.Since(begin).Milliseconds())
	return nil
}

// report returns the state that explains a failure: ends of logs, links, routes, rules, files. It
// names a directory with the whole logs.
func (c *cluster) report() string {
	var b strings.Builder
	kept, err := os.MkdirTemp("", "cnibox-nodes-")
	if err != nil {
		kept = err.Error()
	}
	fmt.Fprintf(&b, "\n== logs are kept in %s\n", kept)
	logs, _ := filepath.Glob(logFile("*")) // the pattern is well formed
	for _, log := range logs {
		text, err := os.ReadFile(log)
		if err == nil {
			err = os.WriteFile(filepath.Join(kept, filepath.Base(log)), text, 0o600)
		}
		if err != nil {
			fmt.Fprintf(&b, "%v\n", err)
		}
		lines := strings.SplitAfter(string(text), "\n")
		fmt.Fprintf(&b, "\n== end of %s\n%s", filepath.Base(log), strings.Join(lines[max(0, len(lines)-50):], ""))
	}
	show := func(name string, argv ...string) {
		out, err := run(argv...)
		if err != nil {
			out = err.Error() + "\n"
		}
		fmt.Fprintf(&b, "\n== %s\n%s", name, out)
	}
	for _, name := range []string{underlay, outside} {
		show(name+": addr", "ip", "-n", name, "addr")
		show(name+": neigh", "ip", "-n", name, "neigh")
	}
	for _, n := range c.nodes {
		if n.holder == nil || n.holder.ProcessState != nil {
			fmt.Fprintf(&b, "\n== %s is off\n", n.name)
			continue
		}
		fmt.Fprintf(&b, "\n== %s: cni-exec\n%s", n.name, n.warnings.String())
		for _, argv := range [][]string{
			{"cat", subnetFile}, {"ip", "addr"}, {"ip", "route"}, {"ip", "-6", "route"}, {"ip", "neigh"}, {"bridge", "fdb"},
			{"nft", "list", "ruleset"}, {"find", "/var/lib/cni", "/run/netns"},
			{"ip", "-n", "web", "addr"}, {"ip", "-n", "web", "-6", "route"}, {"ip", "-n", "web", "neigh"},
		} {
			show(n.name+": "+strings.Join(argv, " "), n.enter(argv...)...)
		}
	}
	return b.String()
}

// versions returns the versions of what runs here.
func (c *cluster) versions() (string, error) {
	flanneld, err := buildinfo.ReadFile(c.flanneldPath)
	if err != nil {
		return "", err
	}
	all := []string{"flanneld " + flanneld.Main.Version}
	for _, argv := range [][]string{{"etcd", "--version"}, {"iptables", "--version"}, {"nft", "--version"}, {"uname", "-sr"}} {
		out, err := run(argv...)
		if err != nil {
			return "", err
		}
		first, _, _ := strings.Cut(out, "\n")
		all = append(all, first)
	}
	return strings.Join(all, ", "), nil
}
