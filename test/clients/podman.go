package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/cnibox/cnibox/test/sandbox"
)

// podmanNets is where `podman network create` writes. It is not containerd's directory, since
// containerd uses the first network there for all containers.
const podmanNets = work + "/podman/net.d"

// podmanConf makes podman and buildah use CNI plugins, without Debian's in the list. The default
// network has another subnet than containerd's, whose bridge stays. runc works with mixed cgroup
// hierarchies; crun does not.
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

// podmanFiles are those of /etc/containers, which is empty in the sandbox. Layers are in the
// sandbox's tmpfs.
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

// Arguments of `podman network create` for the networks besides the default one, the name last.
var podmanNetworks = []string{
	"--ipv6 --subnet 10.86.0.0/24 --subnet fd00:86::/64 dual",
	"--internal --subnet 10.85.0.0/24 inner",
	"-o isolate=1 --subnet 10.84.1.0/24 alone1",
	"-o isolate=1 --subnet 10.84.2.0/24 alone2",
	"-d macvlan -o parent=up0 --subnet 198.51.100.0/24 --gateway 198.51.100.2 lan",
}

// podman runs the client. The error has its stderr, and the exit status of the container if that is
// not 0.
func podman(args ...string) (string, error) {
	out, _, err := sandbox.Call{Argv: append([]string{"podman"}, args...), Env: os.Environ()}.Run()
	return strings.TrimSpace(string(out)), err
}

// podmanSetup configures podman, loads the image and creates the networks, by the files that podman
// writes itself.
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

// podmanRun starts a detached container that serves the page on port 80.
func (h *host) podmanRun(name string, flags ...string) error {
	args := []string{"run", "-d", "--pull", "never", "--cgroup-parent", h.cgroup + "/podman", "--name", name}
	_, err := podman(append(append(args, flags...), image)...)
	return err
}

// podmanExec runs shell commands in a container and returns their output.
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

// podmanNetNS returns the path of a container's network namespace.
func podmanNetNS(name string) (string, error) {
	return podman("inspect", "-f", "{{.NetworkSettings.SandboxKey}}", name)
}

// podmanRemove kills and deletes containers.
func podmanRemove(names ...string) error {
	_, err := podman(append([]string{"rm", "-f", "-t", "0"}, names...)...)
	return err
}
