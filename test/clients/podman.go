package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"cnibox/test/sandbox"
)

// podmanNets is where `podman network create` writes. It is a directory of its own, since
// containerd takes the first network of its directory for all.
const podmanNets = work + "/podman/net.d"

// podmanConf has podman and buildah use CNI plugins, and ours alone: Debian's are in
// the list otherwise. The default network moves aside for containerd's, whose bridge
// stays. runc runs where hierarchies of control groups are mixed; crun does not.
const podmanConf = `[network]
network_backend = "cni"
cni_plugin_dirs = ["` + pluginDir + `"]
network_config_dir = "` + podmanNets + `"
default_subnet = "10.87.0.0/16"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
events_logfile_path = "` + work + `/podman/events"
static_dir = "` + work + `/podman/static"
tmp_dir = "` + work + `/podman/tmp"
volume_path = "` + work + `/podman/volumes"
lock_type = "file"
[containers]
log_driver = "k8s-file"
`

// podmanFiles are those of /etc/containers, which is empty in the sandbox. Layers
// are kept in the sandbox's memory.
var podmanFiles = map[string]string{
	"containers.conf": podmanConf,
	"storage.conf": `[storage]
driver = "overlay"
runroot = "` + work + `/podman/run"
graphroot = "` + work + `/podman/graph"
`,
	"policy.json":     `{"default": [{"type": "insecureAcceptAnything"}]}`,
	"registries.conf": "unqualified-search-registries = []\n",
}

// The networks beside the default one, as `podman network create` takes them, the
// name last.
var podmanNetworks = []string{
	"--ipv6 --subnet 10.86.0.0/24 --subnet fd00:86::/64 dual",
	"--internal --subnet 10.85.0.0/24 inner",
	"-o isolate=1 --subnet 10.84.1.0/24 alone1",
	"-o isolate=1 --subnet 10.84.2.0/24 alone2",
	"-d macvlan -o parent=up0 --subnet 198.51.100.0/24 --gateway 198.51.100.2 lan",
}

// podman runs the client as a person would. The error has its stderr, and the exit
// status of the container if that is not 0.
func podman(args ...string) (string, error) {
	out, _, err := sandbox.Call{Argv: append([]string{"podman"}, args...), Env: os.Environ()}.Run()
	return strings.TrimSpace(string(out)), err
}

// podmanSetup configures podman, loads the image and makes the networks. What
// podman writes of them is what plugins are then asked for.
func (h *host) podmanSetup() error {
	for name, text := range podmanFiles {
		if err := os.WriteFile(filepath.Join("/etc/containers", name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if _, err := podman("load", "-q", "-i", archiveFile); err != nil {
		return err
	}
	for _, args := range podmanNetworks {
		if _, err := podman(append([]string{"network", "create"}, strings.Fields(args)...)...); err != nil {
			return err
		}
	}
	return nil
}

// podmanRun starts a container that serves the page on port 80, and goes on.
func (h *host) podmanRun(name string, flags ...string) error {
	args := []string{"run", "-d", "--pull", "never", "--cgroup-parent", h.cgroup + "/podman", "--name", name}
	_, err := podman(append(append(args, flags...), image)...)
	return err
}

// podmanExec runs a shell command in a container and returns what it writes.
func podmanExec(name string, commands ...string) (string, error) {
	return podman("exec", name, "sh", "-c", strings.Join(commands, " && "))
}

// podmanAddr returns a container's address in a network; six asks for the IPv6 one.
func podmanAddr(name, network string, six bool) (netip.Addr, error) {
	member := "IPAddress"
	if six {
		member = "GlobalIPv6Address"
	}
	text, err := podman("inspect", "-f", fmt.Sprintf("{{(index .NetworkSettings.Networks %q).%s}}", network, member), name)
	if err != nil {
		return netip.Addr{}, err
	}
	return netip.ParseAddr(text)
}

// podmanNetNS returns the path of a container's namespace.
func podmanNetNS(name string) (string, error) {
	return podman("inspect", "-f", "{{.NetworkSettings.SandboxKey}}", name)
}

// podmanRemove kills containers and forgets them.
func podmanRemove(names ...string) error {
	_, err := podman(append([]string{"rm", "-f", "-t", "0"}, names...)...)
	return err
}
