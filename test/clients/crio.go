package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
)

// Directory and socket of CRI-O in the sandbox.
const (
	crioDir    = work + "/crio"
	crioSocket = crioDir + "/crio.sock"
)

// crioConf keeps all files in the sandbox. The pause image serves the page, and CRI-O must not drop
// the pause container. %s is the path of pinns, by which CRI-O makes namespaces.
const crioConf = `[crio]
root = "` + crioDir + `/root"
runroot = "` + crioDir + `/run"
storage_driver = "overlay"
log_dir = "` + crioDir + `/logs"
version_file = "` + crioDir + `/version"
clean_shutdown_file = "` + crioDir + `/clean"
internal_wipe = false
[crio.api]
listen = "` + crioSocket + `"
[crio.runtime]
default_runtime = "runc"
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
namespaces_dir = "` + crioDir + `/ns"
container_exits_dir = "` + crioDir + `/exits"
container_attach_socket_dir = "` + crioDir + `/attach"
pinns_path = "%s/pinns"
drop_infra_ctr = false
hooks_dir = []
[crio.runtime.runtimes.runc]
runtime_path = "` + crioDir + `/runc.sh"
runtime_type = "oci"
runtime_root = "` + crioDir + `/runc"
monitor_path = "%s"
[crio.image]
pause_image = "` + image + `"
pause_command = "/bin/serve"
[crio.network]
network_dir = "` + confDir + `"
plugin_dirs = ["` + criDir + `"]
`

// crio runs pods as the kubelet would. CRI-O publishes ports itself, and calls CHECK after each
// ADD.
func (h *host) crio() error {
	web := &pod{name: "web", ports: []port{{host: 8081, container: 80}}}
	client := &pod{name: "client"}
	return walk(
		stage{"CRI-O: Status says that the network is ready", h.startCRIO},
		stage{"RunPodSandbox with a port mapping; reached directly and from outside", func() error { return h.crioWeb(web) }},
		stage{"the plugins were asked by STATUS and GC, and by CHECK after the ADD", func() error { return h.crioAsked(web) }},
		stage{"a container in a second pod reaches the first pod and outside names", func() error { return h.runClient(client, web) }},
		stage{"StopPodSandbox, RemovePodSandbox; nothing is left behind", func() error {
			return errors.Join(h.stopPod(web), h.remove(web), h.stopPod(client), h.remove(client), eventually(h.empty))
		}},
	)
}

// crioRunc wraps runc for machines that forbid the negative oom_score_adj of pods: unlike
// containerd, CRI-O has no setting for it.
const crioRunc = `#!/bin/sh
before=
for arg; do
	[ "$before" != --bundle ] || sed -i "s/\"oomScoreAdj\": *-[0-9]*/\"oomScoreAdj\":$(cat /proc/self/oom_score_adj)/" "$arg/config.json"
	before=$arg
done
exec %s "$@"
`

// startCRIO loads the image by podman, which has the same storage as CRI-O.
func (h *host) startCRIO() error {
	if err := h.crioFiles(); err != nil {
		return err
	}
	if err := saveImage(); err != nil {
		return err
	}
	if _, err := podman("load", "-q", "-i", archiveFile); err != nil {
		return err
	}
	if err := h.startDaemon("crio", "--config", filepath.Join(crioDir, "crio.conf"), "--config-dir", ""); err != nil {
		return err
	}
	var err error
	if h.cri, err = dialCRI(crioSocket); err != nil {
		return err
	}
	return eventually(h.ready)
}

func (h *host) crioFiles() error {
	if err := os.MkdirAll(crioDir, 0o755); err != nil {
		return err
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		return err
	}
	conmon, err := exec.LookPath("conmon")
	if err != nil {
		return err
	}
	storage := fmt.Sprintf("[storage]\ndriver = \"overlay\"\nrunroot = %q\ngraphroot = %q\n", crioDir+"/run", crioDir+"/root")
	return errors.Join(
		os.WriteFile("/etc/containers/storage.conf", []byte(storage), 0o644),
		os.WriteFile("/etc/containers/policy.json", []byte(podmanFiles["policy.json"]), 0o644),
		os.WriteFile("/etc/containers/registries.conf", []byte(podmanFiles["registries.conf"]), 0o644),
		os.WriteFile(filepath.Join(crioDir, "crio.conf"), fmt.Appendf(nil, crioConf, h.builtDir, conmon), 0o600),
		os.WriteFile(filepath.Join(crioDir, "runc.sh"), fmt.Appendf(nil, crioRunc, runc), 0o755),
		h.configure(""))
}

func (h *host) crioWeb(p *pod) error {
	if err := h.run(p); err != nil {
		return err
	}
	ip, err := h.addr(p)
	if err != nil {
		return err
	}
	return errors.Join(fetch(nil, netip.AddrPortFrom(ip, 80)),
		fetch(h.outside.NS, netip.AddrPortFrom(hostAddr, uint16(p.ports[0].host))))
}

// crioAsked checks the calls of the plugins.
func (h *host) crioAsked(p *pod) error {
	for _, plugin := range []string{"bridge", "portmap", "bandwidth"} {
		status, err := callsOf(plugin, "STATUS", "")
		if err != nil {
			return err
		}
		gc, err := callsOf(plugin, "GC", "")
		if err != nil {
			return err
		}
		check, err := callsOf(plugin, "CHECK", p.id)
		if err != nil {
			return err
		}
		if len(status) == 0 || len(gc) == 0 || len(check) == 0 || check[0].Conf.CNIVersion != "1.1.0" || check[0].Conf.PrevResult == nil {
			return fmt.Errorf("%s: STATUS %+v, GC %+v, CHECK %+v", plugin, status, gc, check)
		}
	}
	return nil
}
