package applets_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/applets"
	"cnibox/applets/applet"
	"cnibox/internal/kerneltest"
	"cnibox/internal/nfttest"
	"cnibox/nft"
	"cnibox/rtnl"
	"cnibox/spec"
)

// A node is a host with a namespace, a lease directory and containers of its own.
type node struct {
	t    *testing.T
	host *rtnl.NS
	dir  string
	warn io.Writer // gets what stands on stderr; nil: nobody
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, host: kerneltest.NS(t), dir: t.TempDir()}
	kerneltest.LoUp(t, n.host)
	return n
}

// A pod is a container of a node.
type pod struct {
	id, path string
	ns       *rtnl.NS
}

func (n *node) pod(id string) pod {
	n.t.Helper()
	ns := kerneltest.NS(n.t)
	kerneltest.LoUp(n.t, ns)
	return pod{id, kerneltest.NSPath(n.t, ns), ns}
}

// conf replaces $DIR in a configuration by the node's folder.
func (n *node) conf(text string) string { return strings.ReplaceAll(text, "$DIR", n.dir) }

// call runs a verb in the host's namespace as a runtime does and returns the
// error object's code, 0 without, and what stands on stdout.
func (n *node) call(ctx context.Context, verb spec.Verb, plugin, conf string, p pod, more ...string) (code int, out string) {
	n.t.Helper()
	a, ok := applets.Lookup(plugin)
	if !ok {
		n.t.Fatalf("no plugin %s", plugin)
	}
	env := map[string]string{"CNI_COMMAND": string(verb), "CNI_CONTAINERID": p.id, "CNI_IFNAME": "eth0", "CNI_NETNS": p.path}
	for _, kv := range more {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	var stdout, stderr bytes.Buffer
	exit := 0
	err := n.host.Do(func() error {
		exit = applet.Serve(ctx, a, applet.Process{
			Applets: applets.All(),
			Getenv:  func(k string) string { return env[k] }, Stdin: strings.NewReader(n.conf(conf)), Stdout: &stdout, Stderr: &stderr,
		})
		return nil
	})
	if err != nil {
		n.t.Fatal(err)
	}
	if n.warn != nil {
		n.warn.Write(stderr.Bytes())
	}
	if exit == 0 {
		return 0, stdout.String()
	}
	var e struct{ Code int }
	if err := json.Unmarshal(stdout.Bytes(), &e); err != nil {
		n.t.Fatalf("%s: %v: %q %s", verb, err, stdout.String(), stderr.String())
	}
	return e.Code, stdout.String()
}

// must is call for what has to succeed.
func (n *node) must(verb spec.Verb, plugin, conf string, p pod, more ...string) string {
	n.t.Helper()
	code, out := n.call(n.t.Context(), verb, plugin, conf, p, more...)
	if code != 0 {
		n.t.Fatalf("%s of %s: %s", verb, p.id, out)
	}
	return out
}

// state is all that a verb may leave behind on the host and in a container:
// links, addresses, routes, settings, rules and leases.
func (n *node) state(p pod) string {
	n.t.Helper()
	return strings.Join([]string{
		kerneltest.Snapshot(n.t, n.host), kerneltest.Snapshot(n.t, p.ns), nfttest.Ruleset(n.t, n.host), strings.Join(n.leases(), "\n"),
	}, "\n--\n")
}

// leases lists the lease files; the lock and the hints where to go on are no leases.
func (n *node) leases() []string {
	files, err := filepath.Glob(filepath.Join(n.dir, "*", "*"))
	if err != nil {
		n.t.Fatal(err)
	}
	return slices.DeleteFunc(files, func(f string) bool {
		base := filepath.Base(f)
		info, err := os.Lstat(f)
		return base == "lock" || strings.HasPrefix(base, "last_reserved_ip.") || err != nil || info.IsDir()
	})
}

// prev puts an ADD's answer into a configuration as prevResult.
func prev(conf, result string) string {
	return strings.TrimSuffix(strings.TrimSpace(conf), "}") + `,"prevResult":` + result + "}"
}

// withStranger enters an interface and its addresses, of neither family's networks here,
// into a result, as a later plugin of a chain may.
func withStranger(result string) string {
	at := strings.Count(result, `"name":`)
	end := strings.Index(result, `],`) // of interfaces, which come first
	result = result[:end] + `,{"name":"net9","sandbox":"/elsewhere"}` + result[end:]
	return strings.Replace(result, `"ips": [`, fmt.Sprintf(`"ips": [{"address":"192.168.7.2/24","gateway":"192.168.7.1","interface":%d},`+
		`{"address":"fd00:7::2/64","gateway":"fd00:7::1","interface":%d},`, at, at), 1)
}

// echo answers on a port of every address of a pod until the test ends.
func (n *node) echo(p pod) {
	n.t.Helper()
	err := p.ns.Do(func() error {
		l, err := net.Listen("tcp", ":7")
		if err != nil {
			return err
		}
		n.t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				c.Write([]byte(p.id))
				c.Close()
			}
		}()
		return nil
	})
	if err != nil {
		n.t.Fatal(err)
	}
}

// patience is how long a test waits for what has to come: it only counts where the test
// fails. A guest that is silent for three minutes is taken for dead.
var patience = kerneltest.Patience(15 * time.Second)

// until waits for what comes in its own time; the error tells what is there instead.
func until(t *testing.T, there func() error) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		over := time.Now().After(end)
		err := there()
		if err == nil {
			return
		}
		if over {
			t.Fatal(err)
		}
	}
}

// connect opens a connection out of a namespace. It tries again while nobody is found:
// the kernel joins multicast groups and learns of carriers in its own time. A refusal is
// an answer.
func connect(ns *rtnl.NS, network, addr string, within time.Duration) (c net.Conn, err error) {
	for end := time.Now().Add(within); ; time.Sleep(10 * time.Millisecond) {
		err = ns.Do(func() (err error) {
			c, err = net.DialTimeout(network, addr, time.Until(end))
			return err
		})
		if err == nil || errors.Is(err, unix.ECONNREFUSED) || time.Now().After(end) {
			return c, err
		}
	}
}

// ask returns who answers at an address, asked from ns; "" if nobody takes the call in time.
func ask(t *testing.T, ns *rtnl.NS, addr string, within time.Duration) (who string) {
	t.Helper()
	c, err := connect(ns, "tcp", net.JoinHostPort(addr, "7"), within)
	if err != nil {
		return ""
	}
	defer c.Close()
	c.SetReadDeadline(time.Now().Add(patience))
	b := make([]byte, 64)
	k, _ := c.Read(b)
	return string(b[:k])
}

// trusting has a link ask nobody again whom it has found once: it finds one who has moved
// only if that is announced, however long it is waited for.
func trusting(t *testing.T, ns *rtnl.NS, link string) {
	t.Helper()
	for _, family := range []string{"ipv4", "ipv6"} {
		dir := "net/" + family + "/neigh/" + link + "/"
		err := ns.SetSysctls(rtnl.Sysctl{Key: dir + "base_reachable_time_ms", Value: "36000000"},
			rtnl.Sysctl{Key: dir + "delay_first_probe_time", Value: "36000"})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// detection has duplicate detection, on links that a namespace gets from now on, begin
// within some seconds and ask so many times, once a second.
func detection(t *testing.T, ns *rtnl.NS, delay, times string) {
	t.Helper()
	err := ns.SetSysctls(
		rtnl.Sysctl{Key: "net/ipv6/conf/default/router_solicitation_delay", Value: delay, Optional: true},
		rtnl.Sysctl{Key: "net/ipv6/conf/default/dad_transmits", Value: times, Optional: true})
	if err != nil {
		t.Fatal(err)
	}
}

// careful is a pod whose duplicate detection asks three times, since an answer may be late.
func (n *node) careful(id string) pod {
	n.t.Helper()
	p := n.pod(id)
	detection(n.t, p.ns, "1", "3")
	return p
}

func links(t *testing.T, ns *rtnl.NS) []rtnl.Link {
	t.Helper()
	all, err := kerneltest.Dial(t, ns).Links()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func linkOf(t *testing.T, c *rtnl.Conn, name string) *rtnl.Link {
	t.Helper()
	all, err := c.Links()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range all {
		if strings.HasPrefix(l.Name, name) {
			return &l
		}
	}
	t.Fatalf("no link %s", name)
	return nil
}

// prefix is an address with the length of its network.
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func releaseAll(t *testing.T, n *node, p pod, kind nft.Kind) error {
	return nft.Open(n.host).Update(t.Context(), func(x *nft.Tx) error {
		x.Release(spec.Attachment{Network: "demo", ContainerID: p.id, IfName: "eth0"}, kind)
		return nil
	})
}
