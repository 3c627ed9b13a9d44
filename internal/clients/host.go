package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/internal/sandbox"
	"cnibox/rtnl"
)

// Where things are in the sandbox.
const (
	work      = "/run/clients"
	pluginDir = "/opt/cni/bin"   // as ctr has it
	confDir   = "/etc/cni/net.d" // as ctr has it
	criDir    = work + "/bin"    // plugins of the CRI plugin, recorded
	socket    = "/run/containerd/containerd.sock"
	daemonLog = work + "/containerd.log"
)

// The machine outside, and what the host is reached by from there (RFC 5737).
var (
	hostAddr    = netip.MustParseAddr("198.51.100.1")
	outsideAddr = netip.MustParseAddr("198.51.100.2")
	gateway     = netip.MustParseAddr("10.88.0.1")
)

// A host runs containerd, and a cable leads from it to a machine outside.
type host struct {
	bin     string
	cgroup  string // parent of all control groups of the containers
	links   *rtnl.Conn
	outside *sandbox.NetNS
	daemon  *exec.Cmd
	cri     *service
	stopDNS func()
}

func newHost(bin string) (*host, error) {
	h := &host{bin: bin, cgroup: os.Getenv(cgroupVar)}
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
	if h.links, err = rtnl.Dial(nil); err != nil {
		return nil, err
	}
	if h.outside, err = sandbox.NewNetNS("outside"); err != nil {
		return nil, err
	}
	if err := h.cable(); err != nil {
		return nil, fmt.Errorf("cable to the outside: %w", err)
	}
	h.stopDNS, err = serveDNS(h.outside.NS, netip.AddrPortFrom(outsideAddr, 53))
	return h, err
}

// cable connects host and outside.
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
		c    *rtnl.Conn
		name string
		ip   netip.Addr
	}{{h.links, "up0", hostAddr}, {outside, "eth0", outsideAddr}} {
		l, err := end.c.Link(end.name)
		if err != nil {
			return err
		}
		up := true
		if err := end.c.SetLink(l.Index, rtnl.LinkChange{Up: &up}); err != nil {
			return err
		}
		if err := end.c.AddAddr(l.Index, rtnl.Addr{Prefix: netip.PrefixFrom(end.ip, 24)}); err != nil {
			return err
		}
	}
	return nil
}

// daemonConf keeps all in the sandbox, and names what the CRI plugin needs. Some
// machines of continuous integration forbid the negative scores of pods.
const daemonConf = `version = 2
root = "` + work + `/root"
[plugins."io.containerd.internal.v1.opt"]
  path = "` + work + `/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + image + `"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "` + criDir + `"
    conf_dir = "` + confDir + `"
`

// start starts containerd and gives it the image, in the namespaces of ctr and
// of the CRI plugin.
func (h *host) start() error {
	conf := filepath.Join(work, "config.toml")
	if err := os.WriteFile(conf, []byte(daemonConf), 0o600); err != nil {
		return err
	}
	output, err := os.Create(daemonLog)
	if err != nil {
		return err
	}
	defer output.Close()
	h.daemon = exec.Command("containerd", "--config", conf)
	h.daemon.Stdout, h.daemon.Stderr = output, output
	if err := h.daemon.Start(); err != nil {
		return err
	}
	h.cri = dialService(socket, "runtime.v1.RuntimeService")
	err = eventually(func() error { _, err := h.ctr("version"); return err })
	if err != nil {
		return fmt.Errorf("containerd does not answer: %w", err)
	}
	return h.loadImage()
}

func (h *host) loadImage() error {
	file := filepath.Join(work, "image.tar")
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(writeImage(f), f.Close()); err != nil {
		return err
	}
	for _, namespace := range []string{"default", "k8s.io"} {
		if _, err := h.ctr("--namespace", namespace, "image", "import", file); err != nil {
			return err
		}
	}
	return nil
}

// stop ends containerd. What it left running ends with this process.
func (h *host) stop() error {
	h.stopDNS()
	if h.daemon == nil || h.daemon.Process == nil {
		return nil
	}
	if err := h.daemon.Process.Signal(unix.SIGTERM); err != nil {
		return err
	}
	h.daemon.Wait() // by a signal, or well: it is not on trial
	return nil
}

// complaints are the lines of containerd's log that tell of trouble.
func (h *host) complaints() string {
	text, err := os.ReadFile(daemonLog)
	if err != nil {
		return ""
	}
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		if !strings.Contains(line, "level=info") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// ctr runs the client as a person would and returns what it writes.
func (h *host) ctr(args ...string) (string, error) {
	out, _, err := sandbox.Call{Argv: append([]string{"ctr"}, args...), Env: os.Environ()}.Run()
	return string(out), err
}

// patience is how long a change may take that no event tells of.
const patience = 10 * time.Second

// eventually calls fn until it succeeds; after its time it returns the last error.
func eventually(fn func() error) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
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

// step does one thing and says what it was, and how long it took.
func step(text string, fn func() error) error {
	begin := time.Now()
	if err := fn(); err != nil {
		fmt.Println("FAIL", text)
		return fmt.Errorf("%s: %w", text, err)
	}
	fmt.Printf("ok   %-66s %5d ms\n", text, time.Since(begin).Milliseconds())
	return nil
}
