package applets_test

import (
	"bytes"
	"context"
	"encoding/json"
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

	"cnibox/applets"
	"cnibox/internal/kerneltest"
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
func (n *node) call(ctx context.Context, verb spec.Verb, applet, conf string, p pod, more ...string) (code int, out string) {
	n.t.Helper()
	a, ok := applets.Lookup(applet)
	if !ok {
		n.t.Fatalf("no applet %s", applet)
	}
	env := map[string]string{"CNI_COMMAND": string(verb), "CNI_CONTAINERID": p.id, "CNI_IFNAME": "eth0", "CNI_NETNS": p.path}
	for _, kv := range more {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	var stdout, stderr bytes.Buffer
	exit := 0
	err := n.host.Do(func() error {
		exit = applets.Serve(ctx, a, applets.Process{
			Getenv: func(k string) string { return env[k] }, Stdin: strings.NewReader(n.conf(conf)), Stdout: &stdout, Stderr: &stderr,
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
func (n *node) must(verb spec.Verb, applet, conf string, p pod, more ...string) string {
	n.t.Helper()
	code, out := n.call(n.t.Context(), verb, applet, conf, p, more...)
	if code != 0 {
		n.t.Fatalf("%s of %s: %s", verb, p.id, out)
	}
	return out
}

// state is all that a verb may leave behind on the host and in a container:
// links, addresses, routes, settings, rules and leases.
func (n *node) state(p pod) string {
	n.t.Helper()
	rules, err := nft.Render(n.host)
	if err != nil {
		n.t.Fatal(err)
	}
	return strings.Join([]string{
		kerneltest.Snapshot(n.t, n.host), kerneltest.Snapshot(n.t, p.ns), rules, strings.Join(n.leases(), "\n"),
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

// ask returns who answers at an address, asked from ns; "" if nobody does in time.
func ask(t *testing.T, ns *rtnl.NS, addr string, within time.Duration) (who string) {
	t.Helper()
	err := ns.Do(func() error {
		d := net.Dialer{Timeout: within}
		c, err := d.Dial("tcp", net.JoinHostPort(addr, "7"))
		if err != nil {
			return nil
		}
		defer c.Close()
		c.SetReadDeadline(time.Now().Add(within))
		b := make([]byte, 64)
		k, _ := c.Read(b)
		who = string(b[:k])
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return who
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
