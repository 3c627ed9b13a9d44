package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/test/sandbox"
)

// Directories in the sandbox.
const (
	work      = "/run/clients"
	pluginDir = "/opt/cni/bin"   // the default of ctr
	confDir   = "/etc/cni/net.d" // the default of ctr
	criDir    = work + "/bin"    // plugins of the CRI plugin, recorded
	socket    = "/run/containerd/containerd.sock"
	daemonLog = work + "/daemon.log"
)

// The machine outside, and the host's addresses there (RFC 5737 and 3849).
var (
	hostAddr     = netip.MustParseAddr("198.51.100.1")
	hostAddr6    = netip.MustParseAddr("2001:db8::1")
	outsideAddr  = netip.MustParseAddr("198.51.100.2")
	outsideAddr6 = netip.MustParseAddr("2001:db8::2")
	gateway      = netip.MustParseAddr("10.88.0.1")
	local        = netip.MustParseAddr("127.0.0.1")
)

// A host runs containerd or CRI-O; a veth pair connects it to a machine outside. It is the sandbox that this
// program runs in and not a test, so it has no applettest.Host.
type host struct {
	options
	cgroup  string // path; parent of all control groups of the containers
	release release
	folded  bool // networks are folded lists
	links   *rtnl.Conn
	outside *sandbox.NetNS
	daemon  *exec.Cmd

	buildkitd   *exec.Cmd
	buildkitEnd <-chan struct{}
	nomadd      *exec.Cmd

	cri     cri.RuntimeServiceClient
	stopDNS func()
}

// newHost hides the machine's directories and makes the network around the host. Only the name
// server outside runs yet.
func newHost(o options) (*host, error) {
	h := &host{options: o, cgroup: os.Getenv(cgroupVar)}
	for _, prepare := range []func() error{ownProc, hide} {
		if err := prepare(); err != nil {
			return nil, err
		}
	}
	for _, dir := range []string{work, criDir, pluginDir, confDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	var err error
	if h.links, err = rtnl.Dial(netns.Host()); err != nil {
		return nil, err
	}
	if h.outside, err = sandbox.NewNetNS("outside"); err != nil {
		return nil, err
	}
	if err := h.cable(); err != nil {
		return nil, fmt.Errorf("cable to the outside: %w", err)
	}
	// Port 53, since resolv.conf has no ports.
	h.stopDNS, err = serveDNS(h.outside.NS, netip.AddrPortFrom(outsideAddr, 53))
	return h, err
}

// cable connects host and outside. Outside has no route to the containers' addresses: replies can
// only reach masqueraded packets.
func (h *host) cable() error {
	spec := rtnl.LinkSpec{Name: "up0", Peer: &rtnl.LinkSpec{Name: "eth0", NS: h.outside.NS}}
	if err := h.links.AddLink(spec); err != nil {
		return err
	}
	outside, err := rtnl.Dial(h.outside.NS)
	if err != nil {
		return err
	}
	defer outside.Close()
	for _, end := range []struct {
		c       *rtnl.Conn
		name    string
		ip, ip6 netip.Addr
	}{{h.links, "up0", hostAddr, hostAddr6}, {outside, "eth0", outsideAddr, outsideAddr6}} {
		l, err := end.c.Link(end.name)
		if err != nil {
			return err
		}
		up := true
		if err := end.c.SetLink(l.Index, rtnl.LinkChange{Up: &up}); err != nil {
			return err
		}
		err = end.c.Do(rtnl.NewAddr(l.Index, rtnl.Addr{Prefix: netip.PrefixFrom(end.ip, 24)}),
			rtnl.NewAddr(l.Index, rtnl.Addr{Prefix: netip.PrefixFrom(end.ip6, 64), NoDAD: true}))
		if err != nil {
			return err
		}
	}
	return nil
}

// timeLimit is how long a change may take that no event reports. It is for busy machines, and
// matters only if the trial fails.
const timeLimit = time.Minute

// eventually calls fn until it succeeds; after [timeLimit] it returns the last error. It is for
// states that the kernel or containerd reach asynchronously, such as the deletion of a link with
// its namespace.
func eventually(fn func() error) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeLimit)
	defer cancel()
	for {
		err := fn()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// step calls fn and prints the text and the time it took. The last line before an error shows where
// the trial failed.
func step(text string, fn func() error) error {
	begin := time.Now()
	if err := fn(); err != nil {
		fmt.Println("FAIL", text)
		return fmt.Errorf("%s: %w", text, err)
	}
	fmt.Printf("ok   %-66s %5d ms\n", text, time.Since(begin).Milliseconds())
	return nil
}

// A stage is one step of a part.
type stage struct {
	text string
	do   func() error
}

// walk runs the stages up to the first that fails.
func walk(stages ...stage) error {
	for _, s := range stages {
		if err := step(s.text, s.do); err != nil {
			return err
		}
	}
	return nil
}
