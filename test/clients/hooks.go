package main

import (
	"encoding/json"
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

const (
	hooksDir = work + "/hooks"
	hookPort = 8480 // of the host
	hookLog  = "/var/lib/cni/cnibox/hook.log"
)

// An ociRuntime makes containers by itself, without a manager that has a network.
type ociRuntime struct {
	name  string
	flags []string
}

var ociRuntimes = []ociRuntime{
	{name: "runc"},
	{name: "crun", flags: []string{"--cgroup-manager=disabled"}},
}

// hooks runs containers of runc and crun whose only network is made by `cni-exec hook`.
func (h *host) hooks() error {
	rootfs := filepath.Join(hooksDir, "rootfs")
	www := filepath.Join(rootfs, "www")
	err := errors.Join(h.configure(""), os.MkdirAll(www, 0o755), busyboxIn(rootfs),
		os.MkdirAll(filepath.Join(rootfs, "proc"), 0o755), os.MkdirAll(filepath.Join(rootfs, "dev"), 0o755), os.WriteFile(filepath.Join(www, "index.html"), []byte(page), 0o644))
	if err != nil {
		return err
	}
	for _, r := range ociRuntimes {
		if r.name == "crun" { // it refuses mixed cgroup hierarchies
			if err := unix.Mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, ""); err != nil {
				return err
			}
			defer unix.Unmount("/sys/fs/cgroup", unix.MNT_DETACH)
		}
		err := walk(
			stage{r.name + ": create, start, a port, delete", func() error { return h.hookServes(r) }},
			stage{r.name + ": a container that ends by itself", func() error { return h.hookEnds(r) }},
			stage{r.name + ": networks and ports of annotations", func() error { return h.hookAnnotated(r) }},
			stage{r.name + ": a hook that fails is reported, and leaves nothing", func() error { return h.hookFails(r) }},
			stage{r.name + ": the container is killed and its state lost; gc", func() error { return h.hookLost(r) }},
			stage{r.name + ": the runtime is killed after the hook; delete --force", func() error { return h.hookKilled(r) }},
		)
		if err != nil {
			log, _ := os.ReadFile(filepath.Join(hooksDir, "log"))
			return fmt.Errorf("%w\n%s", err, log)
		}
	}
	return nil
}

// bundle writes the bundle of a container that has a network namespace, and the hooks.
func (h *host) bundle(command string, annotations map[string]string, args ...string) (dir string, err error) {
	type hook struct {
		Path string   `json:"path"`
		Args []string `json:"args"`
	}
	hooks := []hook{{filepath.Join(pluginDir, "cni-exec"), append([]string{"cni-exec", "hook"}, args...)}}
	type named map[string]string
	caps := []string{"CAP_NET_BIND_SERVICE", "CAP_NET_RAW"}
	doc, err := json.Marshal(map[string]any{
		"ociVersion": "1.0.2", "annotations": annotations,
		"process": map[string]any{
			"args": []string{"sh", "-c", command}, "cwd": "/", "env": []string{"PATH=/bin"}, "user": map[string]int{"uid": 0, "gid": 0},
			"capabilities": map[string][]string{"bounding": caps, "effective": caps, "permitted": caps},
		},
		"root":   map[string]any{"path": filepath.Join(hooksDir, "rootfs")},
		"mounts": []named{{"destination": "/proc", "type": "proc", "source": "proc"}, {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}},
		"hooks":  map[string]any{"createRuntime": hooks, "poststop": hooks},
		"linux": map[string]any{
			"cgroupsPath": h.cgroup + "/hooks",
			"namespaces":  []named{{"type": "pid"}, {"type": "mount"}, {"type": "network"}, {"type": "ipc"}, {"type": "uts"}},
		},
	})
	if err != nil {
		return "", err
	}
	dir = filepath.Join(hooksDir, "bundle")
	return dir, errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "config.json"), doc, 0o600))
}

// call runs the runtime. The container has its output, so that is a file. The error has what was
// written to it.
func (r ociRuntime) call(args ...string) error {
	out, err := os.Create(filepath.Join(hooksDir, "log"))
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command(r.name, append(append([]string{"--root", filepath.Join(hooksDir, r.name)}, r.flags...), args...)...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(out.Name())
		return fmt.Errorf("%s %s: %w: %s", r.name, strings.Join(args, " "), err, text)
	}
	return nil
}

// serving is the command of a container with a web server.
const serving = "exec httpd -f -p 80 -h /www"

func (h *host) hookServes(r ociRuntime) error {
	dir, err := h.bundle(serving, nil, "-p", fmt.Sprintf("%d:80", hookPort), network)
	if err != nil {
		return err
	}
	if err := r.call("create", "--bundle", dir, "web"); err != nil {
		return err
	}
	if _, err := address("web"); err != nil {
		return fmt.Errorf("after create: %w", err)
	}
	if err := r.call("start", "web"); err != nil {
		return err
	}
	err = errors.Join(h.publishedAt(hookPort), cniExec("check", "web"))
	return errors.Join(err, r.call("kill", "web", "KILL"), r.gone("web"), eventually(h.empty))
}

// gone deletes a container that was killed. Until the runtime has seen its end, that is an error.
func (r ociRuntime) gone(id string) error {
	return eventually(func() error { return r.call("delete", id) })
}

func cniExec(args ...string) error {
	_, _, err := sandbox.Call{Argv: append([]string{filepath.Join(pluginDir, "cni-exec")}, args...), Env: os.Environ()}.Run()
	return err
}

// hookEnds: the container reaches outside, by the address that it has when its command begins.
func (h *host) hookEnds(r ociRuntime) error {
	dir, err := h.bundle("ip address show dev eth0 && ping -c 1 -W 5 "+outsideAddr.String(), nil, network)
	if err != nil {
		return err
	}
	return errors.Join(r.call("run", "--bundle", dir, "once"), eventually(h.empty))
}

func (h *host) hookAnnotated(r ociRuntime) error {
	dir, err := h.bundle(serving, map[string]string{"cni.cnibox/networks": network, "cni.cnibox/ports": fmt.Sprintf("%d:80", hookPort)}, "nosuch")
	if err != nil {
		return err
	}
	if err := r.call("run", "--detach", "--bundle", dir, "web"); err != nil {
		return err
	}
	return errors.Join(h.publishedAt(hookPort), r.call("delete", "--force", "web"), eventually(h.empty))
}

// hookFails: runc prints what the hook has written to stderr, crun does not; the log has it.
func (h *host) hookFails(r ociRuntime) error {
	dir, err := h.bundle(serving, nil, network, "nosuch")
	if err != nil {
		return err
	}
	os.Remove(hookLog)
	if err := r.call("create", "--bundle", dir, "web"); err == nil {
		return errors.New("the container was created")
	}
	log, err := os.ReadFile(hookLog)
	if err == nil && !strings.Contains(string(log), `no net configuration with name \"nosuch\"`) {
		err = fmt.Errorf("%s: %q", hookLog, log)
	}
	return errors.Join(err, eventually(h.empty))
}

// hookLost: poststop is not called.
func (h *host) hookLost(r ociRuntime) error {
	if err := h.hookDetached(r); err != nil {
		return err
	}
	pid, err := hookPID()
	if err != nil {
		return err
	}
	err = errors.Join(unix.Kill(pid, unix.SIGKILL), os.RemoveAll(filepath.Join(hooksDir, r.name)))
	if err != nil {
		return err
	}
	return eventually(func() error { return errors.Join(gc(network), h.empty()) })
}

// hookKilled: the runtime ends between the hook and the start of the container, which waits for it.
func (h *host) hookKilled(r ociRuntime) error {
	dir, err := h.bundle(serving, nil, network)
	if err != nil {
		return err
	}
	if err := r.call("create", "--bundle", dir, "web"); err != nil {
		return err
	}
	pid, err := hookPID()
	if err != nil {
		return err
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		return err
	}
	return errors.Join(eventually(func() error { return r.call("delete", "--force", "web") }), eventually(h.empty))
}

func (h *host) hookDetached(r ociRuntime) error {
	dir, err := h.bundle(serving, nil, "-p", fmt.Sprintf("%d:80", hookPort), network)
	if err != nil {
		return err
	}
	return errors.Join(r.call("run", "--detach", "--bundle", dir, "web"), fetch(h.outside.NS, netip.AddrPortFrom(hostAddr, hookPort)))
}

// hookPID returns the process of the container, whose namespace the cache has.
func hookPID() (pid int, err error) {
	b, err := os.ReadFile("/var/lib/cni/results/" + network + "-web-eth0")
	if err != nil {
		return 0, err
	}
	var entry struct{ NetNS string }
	if err := json.Unmarshal(b, &entry); err != nil {
		return 0, err
	}
	_, err = fmt.Sscanf(entry.NetNS, "/proc/%d/ns/net", &pid)
	return pid, err
}
