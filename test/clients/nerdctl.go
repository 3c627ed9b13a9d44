package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/test/sandbox"
)

// nerdctlNets is where nerdctl writes its networks.
const nerdctlNets = work + "/nerdctl/net.d"

// nerdctlConf keeps all files in the sandbox. nerdctl passes this file to its hook, which calls the
// plugins.
const nerdctlConf = `data_root = "` + work + `/nerdctl/data"
cni_path = "` + pluginDir + `"
cni_netconfpath = "` + nerdctlNets + `"
cgroup_manager = "cgroupfs"
`

// Host ports of nerdctl's containers.
const nerdctlPort, nerdctlUDP = 8280, 8253

// nerdctl runs containers in the networks that nerdctl writes. nerdctl calls DEL before each ADD,
// and its default network needs a firewall plugin of 1.1.0 or later.
func (h *host) nerdctl() error {
	return walk(
		stage{"nerdctl network create: a second bridge, and macvlan", h.nerdctlSetup},
		stage{"nerdctl run -p: from the host and from outside, TCP and UDP", h.nerdctlPublished},
		stage{"a second container: the first one's address, names outside", h.nerdctlClient},
		stage{"nerdctl stop and start: the port is published again", h.nerdctlRestart},
		stage{"a static address and MAC, in the second network, isolated from the first", h.nerdctlStatic},
		stage{"macvlan: an address on the segment outside", h.nerdctlLAN},
		stage{"nerdctl rm, network rm; nothing is left behind", h.nerdctlEnd},
	)
}

func nerdctl(args ...string) (string, error) {
	out, _, err := sandbox.Call{Argv: append([]string{"nerdctl"}, args...), Env: os.Environ()}.Run()
	return strings.TrimSpace(string(out)), err
}

// nerdctlSetup does not load the image: nerdctl shares ctr's namespace "default".
func (h *host) nerdctlSetup() error {
	file := filepath.Join(work, "nerdctl.toml")
	err := errors.Join(os.MkdirAll(nerdctlNets, 0o755), os.WriteFile(file, []byte(nerdctlConf), 0o600), os.Setenv("NERDCTL_TOML", file))
	if err != nil {
		return err
	}
	if err := h.nerdctlOutside(); err != nil {
		return err
	}
	for _, args := range []string{
		"--subnet 10.83.0.0/24 second",
		"-d macvlan -o parent=up0 --subnet 192.0.2.0/24 --gateway 192.0.2.2 lan",
	} {
		if _, err := nerdctl(append([]string{"network", "create"}, strings.Fields(args)...)...); err != nil {
			return err
		}
	}
	return nil
}

// nerdctlOutside gives the machine outside an address of a network (RFC 5737) that the host is not
// in: nerdctl makes no network that overlaps one of the host's.
func (h *host) nerdctlOutside() error {
	c, err := rtnl.Dial(h.outside.NS)
	if err != nil {
		return err
	}
	defer c.Close()
	l, err := c.Link("eth0")
	if err != nil {
		return err
	}
	return c.Do(rtnl.NewAddr(l.Index, rtnl.Addr{Prefix: netip.MustParsePrefix("192.0.2.2/24")}))
}

// nerdctlRun starts a container that serves the page or runs a command.
func (h *host) nerdctlRun(name string, flags []string, command ...string) (string, error) {
	args := append([]string{"run", "--pull", "never", "--cgroup-parent", h.cgroup + "/nerdctl", "--name", name}, flags...)
	return nerdctl(append(append(args, image), command...)...)
}

// nerdctlAddr returns a container's address in its only network.
func nerdctlAddr(name string) (netip.Addr, error) {
	text, err := nerdctl("inspect", "-f", "{{.NetworkSettings.IPAddress}}", name)
	if err != nil {
		return netip.Addr{}, err
	}
	return netip.ParseAddr(text)
}

func (h *host) nerdctlPublished() error {
	_, err := h.nerdctlRun("web", []string{"-d", "-p", fmt.Sprintf("%d:80", nerdctlPort), "-p", fmt.Sprintf("%d:53/udp", nerdctlUDP)})
	if err != nil {
		return err
	}
	return h.nerdctlReached()
}

// nerdctlReached checks both published ports; a name server in the container's namespace answers at
// the second.
func (h *host) nerdctlReached() error {
	ip, err := nerdctlAddr("web")
	if err != nil {
		return err
	}
	pid, err := nerdctl("inspect", "-f", "{{.State.Pid}}", "web")
	if err != nil {
		return err
	}
	stop, err := serveIn("/proc/"+pid+"/ns/net", netip.AddrPortFrom(ip, 53))
	if err != nil {
		return err
	}
	defer stop()
	return errors.Join(h.publishedAt(nerdctlPort), lookup(h.outside.NS, netip.AddrPortFrom(hostAddr, nerdctlUDP)))
}

func (h *host) nerdctlClient() error {
	ip, err := nerdctlAddr("web")
	if err != nil {
		return err
	}
	out, err := h.nerdctlRun("client", []string{"--rm"}, "sh", "-c", asksOutside+" && "+fetchCommand(netip.AddrPortFrom(ip, 80), timeLimit))
	if err != nil {
		return err
	}
	if !strings.HasSuffix(out, strings.TrimSpace(page)) {
		return fmt.Errorf("no page: %s", out)
	}
	return namesFound(out, "10.4.0.")
}

// nerdctlRestart: the network of a stopped container is deleted when it is started again.
func (h *host) nerdctlRestart() error {
	before, err := h.leftovers()
	if err != nil {
		return err
	}
	for _, verb := range [][]string{{"stop", "-t", "0", "web"}, {"start", "web"}} {
		if _, err := nerdctl(verb...); err != nil {
			return err
		}
	}
	after, err := h.leftovers()
	if err == nil && len(after) != len(before) {
		err = fmt.Errorf("before: %q, after: %q", before, after)
	}
	return errors.Join(err, h.nerdctlReached())
}

// nerdctlStatic: the firewall plugin isolates the two networks from each other.
func (h *host) nerdctlStatic() error {
	const ip, mac = "10.83.0.77", "02:00:00:00:00:77"
	web, err := nerdctlAddr("web")
	if err != nil {
		return err
	}
	at := netip.AddrPortFrom(web, 80)
	out, err := h.nerdctlRun("static", []string{"--rm", "--net", "second", "--ip", ip, "--mac-address", mac},
		"sh", "-c", asksOutside+" && ip link show dev eth0 && ! "+fetchCommand(at, tryTime))
	if err != nil {
		return err
	}
	if !strings.Contains(out, mac) || strings.Contains(out, page) {
		return fmt.Errorf("want %s, and not the page: %s", mac, out)
	}
	return namesFound(out, ip)
}

func (h *host) nerdctlLAN() error {
	out, err := h.nerdctlRun("on-lan", []string{"--rm", "--net", "lan"}, "sh", "-c", asksOutside)
	if err != nil {
		return err
	}
	return namesFound(out, "192.0.2.")
}

func (h *host) nerdctlEnd() error {
	if _, err := nerdctl("rm", "-f", "web"); err != nil {
		return err
	}
	if err := eventually(h.empty); err != nil {
		return err
	}
	_, err := nerdctl("network", "rm", "second", "lan")
	return err
}
