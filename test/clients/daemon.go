package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/test/sandbox"
)

// A release is the format of containerd's configuration, and the newest version of the
// specification that it supports.
type release struct{ conf, cniVersion string }

// The configurations keep all files in the sandbox and have the settings of the CRI plugin. Some
// machines of continuous integration forbid a negative oom_score_adj, and some are so busy that a
// shim needs more than a few seconds to answer.
var (
	containerd1 = release{cniVersion: "1.0.0", conf: `version = 2
root = "` + work + `/root"
[plugins."io.containerd.internal.v1.opt"]
  path = "` + work + `/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + image + `"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "` + criDir + `"
    conf_dir = "` + confDir + `"
` + timeouts}
	containerd2 = release{cniVersion: "1.1.0", conf: `version = 3
root = "` + work + `/root"
[plugins."io.containerd.internal.v1.opt"]
  path = "` + work + `/opt"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "` + image + `"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["` + criDir + `"]
    conf_dir = "` + confDir + `"
` + timeouts}
)

const timeouts = `[timeouts]
  "io.containerd.timeout.shim.cleanup" = "1m"
  "io.containerd.timeout.shim.load" = "1m"
  "io.containerd.timeout.shim.shutdown" = "1m"
  "io.containerd.timeout.task.state" = "1m"
`

// start starts containerd and imports the image in the namespaces of ctr and of the CRI plugin. It
// returns when containerd responds; the CRI plugin may still wait for a network.
func (h *host) start() error {
	conf := filepath.Join(work, "config.toml")
	if err := os.WriteFile(conf, []byte(h.release.conf), 0o600); err != nil {
		return err
	}
	if err := h.startDaemon("containerd", "--config", conf); err != nil {
		return err
	}
	var err error
	if h.cri, err = dialCRI(socket); err != nil {
		return err
	}
	err = eventually(func() error { _, err := h.ctr("version"); return err })
	if err != nil {
		return fmt.Errorf("containerd does not answer: %w", err)
	}
	return h.loadImage()
}

// startDaemon starts containerd or CRI-O, whose output is added to [daemonLog].
func (h *host) startDaemon(argv ...string) error {
	output, err := os.OpenFile(daemonLog, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer output.Close()
	h.daemon = exec.Command(argv[0], argv[1:]...)
	h.daemon.Stdout, h.daemon.Stderr = output, output
	return h.daemon.Start()
}

// restarted: the daemon is killed and started again. Its pod keeps its network, and its DEL leaves nothing.
func (h *host) restarted() error {
	p := &pod{name: "kept", ports: []port{{host: 8082, container: 80}}}
	published := netip.AddrPortFrom(hostAddr, uint16(p.ports[0].host))
	return walk(
		stage{"the daemon is killed and started again: the pod is reached as before", func() error {
			if err := h.run(p); err != nil {
				return err
			}
			before, err := h.addr(p)
			if err != nil {
				return err
			}
			if err := h.daemon.Process.Kill(); err != nil {
				return err
			}
			h.daemon.Wait() // it was killed
			if err := h.startDaemon(h.daemon.Args...); err != nil {
				return err
			}
			if err := eventually(h.ready); err != nil {
				return err
			}
			after, err := h.addr(p)
			if err == nil && after != before {
				err = fmt.Errorf("address %s, before %s", after, before)
			}
			return errors.Join(err, fetch(nil, netip.AddrPortFrom(before, 80)), fetch(h.outside.NS, published))
		}},
		stage{"its pod is stopped and removed by the new one; nothing is left behind", func() error {
			return errors.Join(h.stopPod(p), h.remove(p), eventually(h.empty))
		}},
	)
}

const archiveFile = work + "/image.tar"

// saveImage writes archiveFile.
func saveImage() error {
	f, err := os.OpenFile(archiveFile, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(writeImage(f), f.Close())
}

// loadImage imports the image without a registry.
func (h *host) loadImage() error {
	if err := saveImage(); err != nil {
		return err
	}
	for _, namespace := range []string{"default", "k8s.io"} {
		if _, err := h.ctr("--namespace", namespace, "image", "import", archiveFile); err != nil {
			return err
		}
	}
	return nil
}

// stop ends the daemon. Its child processes end with this process.
func (h *host) stop() error {
	h.stopDNS()
	if h.daemon == nil || h.daemon.Process == nil {
		return nil
	}
	if err := h.daemon.Process.Signal(unix.SIGTERM); err != nil {
		return err
	}
	h.daemon.Wait() // its exit status does not matter
	return nil
}

// logWarnings returns the warnings and errors of the daemon's log; "" without a log. Some are
// expected, such as no devmapper, or no network yet. Those about each container that ends are left
// out.
func (h *host) logWarnings() string {
	text, err := os.ReadFile(daemonLog)
	if err != nil {
		return ""
	}
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		if !strings.Contains(line, "level=info") && !strings.Contains(line, "after shim disconnected") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// ctr runs the client and returns its stdout. The error has its stderr, and the exit status of the
// container if that is not 0.
func (h *host) ctr(args ...string) (string, error) {
	out, _, err := sandbox.Call{Argv: append([]string{"ctr"}, args...), Env: os.Environ()}.Run()
	return string(out), err
}
