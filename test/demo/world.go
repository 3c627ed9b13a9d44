package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"cnibox/internal/netns"
	"cnibox/rtnl"
	"cnibox/spec"
	"cnibox/test/sandbox"
)

// network is the embedded default network of cni-exec.
const network = "cnibox"

// The published port of the container web, and the port of its server.
const (
	hostPort      = 8080
	containerPort = 80
)

// The host's address towards outside, and a machine there (RFC 5737).
var (
	hostAddr    = netip.MustParsePrefix("198.51.100.1/24")
	outsideAddr = netip.MustParsePrefix("198.51.100.2/24")
)

// A world is the host of the sandbox, its containers and a machine outside. build and attach fill
// it, in this order. It is not a test, so it has no applettest.Host.
type world struct {
	bin  string
	page *page

	host        *netns.NS
	hostLinks   *rtnl.Conn
	outside     *sandbox.NetNS
	web, client *container
}

// A container is a namespace and the result of its ADD.
type container struct {
	name   string
	netns  *sandbox.NetNS
	result result
}

// result has the members of a CNI result that are shown. The demo decodes the JSON itself and not
// with our own package.
type result struct {
	Interfaces []struct{ Name, Mac, Sandbox string }
	IPs        []struct {
		Address   netip.Prefix
		Gateway   netip.Addr
		Interface *int
	}
}

// addr returns the container's first address of a family.
func (c *container) addr(is func(netip.Addr) bool) (netip.Addr, bool) {
	for _, ip := range c.result.IPs {
		if is(ip.Address.Addr()) {
			return ip.Address.Addr(), true
		}
	}
	return netip.Addr{}, false
}

// attachment is the owner of the container's leases, elements and links.
func (c *container) attachment() spec.Attachment {
	return spec.Attachment{Network: network, ContainerID: c.name, IfName: "eth0"}
}

// build makes the namespaces, and connects the host to the machine outside.
func (w *world) build() error {
	return w.page.step(func() (string, error) {
		text := "namespaces for the containers web and client, and a machine outside"
		var err error
		if w.host, err = netns.Current(); err != nil {
			return text, err
		}
		if w.hostLinks, err = rtnl.Dial(w.host); err != nil {
			return text, err
		}
		w.web, w.client = &container{name: "web"}, &container{name: "client"}
		for _, c := range []*container{w.web, w.client} {
			if c.netns, err = sandbox.NewNetNS(c.name); err != nil {
				return text, err
			}
		}
		if w.outside, err = sandbox.NewNetNS("outside"); err != nil {
			return text, err
		}
		return text, w.connect()
	})
}

// connect joins host and outside by a veth pair. The two addresses suffice for routing between
// them.
func (w *world) connect() error {
	err := w.hostLinks.AddLink(rtnl.LinkSpec{Name: "up0", Up: true, Peer: &rtnl.LinkSpec{Name: "eth0", NS: w.outside.NS}})
	if err != nil {
		return err
	}
	outside, err := rtnl.Dial(w.outside.NS)
	if err != nil {
		return err
	}
	defer outside.Close()
	if err := address(outside, "eth0", outsideAddr); err != nil {
		return err
	}
	return address(w.hostLinks, "up0", hostAddr)
}

// address sets a link up and gives it an address.
func address(c *rtnl.Conn, name string, ip netip.Prefix) error {
	l, err := c.Link(name)
	if err != nil {
		return err
	}
	up := true
	return c.Do(rtnl.ChangeLink(l.Index, rtnl.LinkChange{Up: &up}), rtnl.NewAddr(l.Index, rtnl.Addr{Prefix: ip}))
}

// attach adds both containers to the network.
func (w *world) attach() error {
	publish := fmt.Sprintf("%d:%d", hostPort, containerPort)
	if err := w.add(w.web, "--publish", publish); err != nil {
		return err
	}
	return w.add(w.client)
}

// add attaches one container and stores the result.
func (w *world) add(c *container, flags ...string) error {
	return w.page.step(func() (string, error) {
		out, text, err := w.cniExec("add", c, flags...)
		if err != nil {
			return text, err
		}
		if err := json.Unmarshal(out, &c.result); err != nil {
			return text, fmt.Errorf("the result of %s: %w", text, err)
		}
		return text, nil
	})
}

// cniExec runs cni-exec without configuration, and returns its stdout and the command line.
func (w *world) cniExec(verb string, c *container, flags ...string) (out []byte, text string, err error) {
	args := append([]string{verb, network, c.netns.Path}, flags...)
	argv := append([]string{w.bin, "cni-exec"}, args...)
	argv = append(argv, "--container-id", c.name, "--conf-dir", "/run/no-configuration")
	out, _, err = sandbox.Call{Argv: argv}.Run()
	return out, "cni-exec " + strings.Join(args, " "), err
}

// check calls CHECK of both containers.
func (w *world) check() error { return w.each("check") }

// detach calls DEL of both containers.
func (w *world) detach() error { return w.each("del") }

// each runs a verb for both containers.
func (w *world) each(verb string) error {
	for _, c := range []*container{w.web, w.client} {
		err := w.page.step(func() (string, error) {
			_, text, err := w.cniExec(verb, c)
			return text, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
