package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"cnibox/test/sandbox"
)

// A release of containerd has a form of its configuration, and a newest version of the
// specification that it knows.
type release struct{ conf, cniVersion string }

// The configurations keep all in the sandbox, and name what the CRI plugin needs. Some
// machines of continuous integration forbid the negative scores of pods, and some are so
// busy that a shim does not answer within seconds.
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

// start starts containerd and gives it the image, in the namespaces of ctr and
// of the CRI plugin. It returns when containerd answers; its CRI plugin may still
// wait for a network then.
func (h *host) start() error {
	conf := filepath.Join(work, "config.toml")
	if err := os.WriteFile(conf, []byte(h.release.conf), 0o600); err != nil {
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
	if h.cri, err = dialCRI(socket); err != nil {
		return err
	}
	err = eventually(func() error { _, err := h.ctr("version"); return err })
	if err != nil {
		return fmt.Errorf("containerd does not answer: %w", err)
	}
	return h.loadImage()
}

// archiveFile has the image.
const archiveFile = work + "/image.tar"

// saveImage writes it.
func saveImage() error {
	f, err := os.OpenFile(archiveFile, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(writeImage(f), f.Close())
}

// loadImage imports the image as a user without a registry would.
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

// complaints are the lines of containerd's log about trouble; "" if there
// is not a log. Some are not trouble: it misses devmapper everywhere, a network before
// there is one, and, which is left out, each container that ends.
func (h *host) complaints() string {
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

// ctr runs the client as a person would and returns what it writes. The error has
// its stderr, and the exit status of the container if that is not 0.
func (h *host) ctr(args ...string) (string, error) {
	out, _, err := sandbox.Call{Argv: append([]string{"ctr"}, args...), Env: os.Environ()}.Run()
	return string(out), err
}
