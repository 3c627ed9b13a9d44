package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/test/sandbox"
)

// Host ports of podman's containers.
const (
	podmanPort  = 8180 // on all addresses of the host
	podmanOne   = 8181 // on hostAddr only
	podmanUDP   = 8153
	podmanSix   = 8182
	podmanAlone = 8183
)

// podmanContainers runs containers in each kind of network that podman makes. podman calls ADD of
// bridge, portmap, firewall and tuning with version 0.4.0, and DEL in reverse order.
func (h *host) podmanContainers() error {
	return walk(
		stage{"podman load; podman network create for each kind of network", h.podmanSetup},
		stage{"podman run -p: all addresses, one address, UDP, from outside too", h.podmanPublished},
		stage{"podman restart", h.podmanRestart},
		stage{"the rules are flushed; podman network reload brings them back", h.podmanReload},
		stage{"podman network connect and disconnect, ports published all the while", h.podmanSecond},
		stage{"a dual stack network", h.podmanDual},
		stage{"an internal network: neighbours, and no others", h.podmanInternal},
		stage{"isolated networks: neighbours, outside, but not each other", h.podmanIsolated},
		stage{"static address and MAC", h.podmanStatic},
		stage{"macvlan: an address on the segment outside", h.podmanLAN},
		stage{"podman --hooks-dir with examples/oci-hook.json, --network none", h.podmanHook},
		stage{"the namespace is gone before podman rm; cni-exec gc", h.podmanLost},
	)
}

// podmanPublished publishes ports in the default network.
func (h *host) podmanPublished() error {
	err := h.podmanRun("web", "-p", fmt.Sprintf("%d:80", podmanPort), "-p", fmt.Sprintf("%d:53/udp", podmanUDP),
		"-p", fmt.Sprintf("%s:%d:80", hostAddr, podmanOne))
	if err != nil {
		return err
	}
	rules, err := ownedRules()
	if err != nil {
		return err
	}
	if !strings.Contains(strings.Join(rules, "\n"), " podman/") {
		return fmt.Errorf("no rules of ours for the network podman: %q", rules)
	}
	return h.podmanReached()
}

// podmanReached checks all published ports of the first container.
func (h *host) podmanReached() error {
	ip, err := podmanAddr("web", "podman", false)
	if err != nil {
		return err
	}
	path, err := podmanNetNS("web")
	if err != nil {
		return err
	}
	stop, err := serveIn(path, netip.AddrPortFrom(ip, 53))
	if err != nil {
		return err
	}
	defer stop()
	err = errors.Join(fetch(nil, netip.AddrPortFrom(ip, 80)), h.publishedAt(podmanPort))
	one := netip.AddrPortFrom(hostAddr, podmanOne)
	err = errors.Join(err, fetch(nil, one), fetch(h.outside.NS, one),
		lookup(h.outside.NS, netip.AddrPortFrom(hostAddr, podmanUDP)), lookup(nil, netip.AddrPortFrom(local, podmanUDP)))
	if err == nil && fetchOnce(nil, netip.AddrPortFrom(local, podmanOne)) == nil {
		err = fmt.Errorf("port %d of %s is published on %s, too", podmanOne, hostAddr, local)
	}
	return err
}

// podmanRestart: the container restarts in a new namespace, and the old one's lease, rules and
// cached results are not left beside the new ones.
func (h *host) podmanRestart() error {
	before, err := h.leftovers()
	if err != nil {
		return err
	}
	if _, err := podman("restart", "-t", "0", "web"); err != nil {
		return err
	}
	if err := h.podmanReached(); err != nil {
		return err
	}
	return eventually(func() error {
		after, err := h.leftovers()
		if err == nil && len(after) != len(before) {
			err = fmt.Errorf("before: %q, after: %q", before, after)
		}
		return err
	})
}

// podmanReload flushes the rule set as firewall daemons do when they start.
func (h *host) podmanReload() error {
	if _, _, err := (sandbox.Call{Argv: []string{"nft", "flush", "ruleset"}, Env: os.Environ()}).Run(); err != nil {
		return err
	}
	if err := fetchOnce(h.outside.NS, netip.AddrPortFrom(hostAddr, podmanPort)); err == nil {
		return errors.New("published without rules")
	}
	if _, err := podman("network", "reload", "web"); err != nil {
		return err
	}
	return h.podmanReached()
}

// podmanSecond: podman passes the ports to every network of a container. They stay reachable as
// long as one network is left.
func (h *host) podmanSecond() error {
	if _, err := podman("network", "connect", "dual", "web"); err != nil {
		return err
	}
	ip6, err := podmanAddr("web", "dual", true)
	if err != nil {
		return err
	}
	err = errors.Join(fetch(nil, netip.AddrPortFrom(ip6, 80)), h.podmanReached())
	if err != nil {
		return err
	}
	if _, err := podman("network", "disconnect", "podman", "web"); err != nil {
		return err
	}
	// By 127.0.0.1: those packets are masqueraded to the bridge's address. The default route was
	// deleted with the first network, as by other plugins.
	if err := fetch(nil, netip.AddrPortFrom(local, podmanPort)); err != nil {
		return fmt.Errorf("after podman network disconnect: %w", err)
	}
	if err := podmanRemove("web"); err != nil {
		return err
	}
	return eventually(h.empty)
}

// podmanDual publishes a port on both families.
func (h *host) podmanDual() error {
	if err := h.podmanRun("dual", "--network", "dual", "-p", fmt.Sprintf("%d:80", podmanSix), "-p", fmt.Sprintf("[::]:%d:80", podmanSix)); err != nil {
		return err
	}
	for _, six := range []bool{false, true} {
		ip, err := podmanAddr("dual", "dual", six)
		if err != nil {
			return err
		}
		at := hostAddr
		if six {
			at = hostAddr6
		}
		err = errors.Join(fetch(nil, netip.AddrPortFrom(ip, 80)), fetch(h.outside.NS, netip.AddrPortFrom(at, podmanSix)))
		if err != nil {
			return err
		}
	}
	return podmanRemove("dual")
}

// podmanInternal: without gateway and default route neither the host's other networks nor the
// machine outside can be reached.
func (h *host) podmanInternal() error {
	for _, name := range []string{"in1", "in2"} {
		if err := h.podmanRun(name, "--network", "inner"); err != nil {
			return err
		}
	}
	ip, err := podmanAddr("in1", "inner", false)
	if err != nil {
		return err
	}
	if err := podmanSees("in2", netip.AddrPortFrom(ip, 80)); err != nil {
		return err
	}
	routes, err := podmanExec("in2", "ip route")
	if err == nil && strings.Contains(routes, "default") {
		err = fmt.Errorf("routes of an internal network: %s", routes)
	}
	if err == nil && fetchOnce(nil, netip.AddrPortFrom(ip, 80)) == nil {
		err = errors.New("the host is in the internal network")
	}
	return errors.Join(err, podmanRemove("in1", "in2"))
}

// podmanIsolated: podman writes ingressPolicy same-bridge for isolate=1.
func (h *host) podmanIsolated() error {
	for name, network := range map[string]string{"a1": "alone1", "b1": "alone1", "a2": "alone2"} {
		flags := []string{"--network", network}
		if name == "a1" {
			flags = append(flags, "-p", fmt.Sprintf("%d:80", podmanAlone))
		}
		if err := h.podmanRun(name, flags...); err != nil {
			return err
		}
	}
	ip, err := podmanAddr("a1", "alone1", false)
	if err != nil {
		return err
	}
	at := netip.AddrPortFrom(ip, 80)
	err = errors.Join(podmanSees("b1", at), fetch(h.outside.NS, netip.AddrPortFrom(hostAddr, podmanAlone)))
	if err == nil && podmanSeesOnce("a2", at) == nil {
		err = fmt.Errorf("a container of another isolated network reaches %s", at)
	}
	return errors.Join(err, podmanRemove("a1", "b1", "a2"))
}

// podmanSees fetches the page from a container; the server may still be starting.
func podmanSees(name string, at netip.AddrPort) error {
	return eventually(func() error { return podmanSeesOnce(name, at) })
}

func podmanSeesOnce(name string, at netip.AddrPort) error {
	out, err := podmanExec(name, fetchCommand(at, tryTime))
	if err == nil && !strings.Contains(out, strings.TrimSpace(page)) {
		err = fmt.Errorf("%s got %q from %s", name, out, at)
	}
	return err
}

// podmanStatic: podman passes address and MAC in CNI_ARGS.
func (h *host) podmanStatic() error {
	const ip, mac = "10.87.7.7", "02:00:5e:00:53:07"
	if err := h.podmanRun("fixed", "--ip", ip, "--mac-address", mac); err != nil {
		return err
	}
	out, err := podmanExec("fixed", "ip address show dev eth0")
	if err == nil && (!strings.Contains(out, ip+"/16") || !strings.Contains(out, mac)) {
		err = fmt.Errorf("want %s and %s: %s", ip, mac, out)
	}
	return errors.Join(err, podmanRemove("fixed"))
}

// podmanLAN: the machine outside reaches the container without forwarding by the host.
func (h *host) podmanLAN() error {
	const ip = "198.51.100.77"
	if err := h.podmanRun("lan", "--network", "lan", "--ip", ip); err != nil {
		return err
	}
	out, err := podmanExec("lan", "ip link show dev eth0", "ip route")
	if err == nil && !strings.Contains(out, "default via "+outsideAddr.String()) {
		err = fmt.Errorf("routes: %s", out)
	}
	err = errors.Join(err, fetch(h.outside.NS, netip.AddrPortFrom(netip.MustParseAddr(ip), 80)))
	return errors.Join(err, podmanRemove("lan"))
}

// podmanHook: podman makes no network, and knows no ports; the hook attaches the container by its annotations.
func (h *host) podmanHook() error {
	example, err := os.ReadFile("../examples/oci-hook.json")
	if err != nil {
		return err
	}
	dir := filepath.Join(work, "hooks.d")
	text := strings.ReplaceAll(string(example), "/usr/local/sbin", pluginDir)
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "cnibox.json"), []byte(text), 0o644)); err != nil {
		return err
	}
	_, err = podman("--hooks-dir", dir, "run", "-d", "--pull", "never", "--cgroup-parent", h.cgroup+"/podman", "--name", "hooked", "--network", "none",
		"--annotation", "cni.cnibox/networks="+network, "--annotation", fmt.Sprintf("cni.cnibox/ports=%d:80", podmanPort), image)
	if err != nil {
		return err
	}
	if err := h.publishedAt(podmanPort); err != nil {
		return err
	}
	_, err = podman("--hooks-dir", dir, "rm", "-f", "-t", "0", "hooked")
	return errors.Join(err, eventually(h.empty))
}

// podmanLost: if podman cannot enter the namespace it does not call DEL, with any plugins. gc finds
// the attachment and its network by libcni's cache; the default network is in no file.
func (h *host) podmanLost() error {
	if err := h.podmanRun("lost", "-p", fmt.Sprintf("%d:80", podmanPort)); err != nil {
		return err
	}
	path, err := podmanNetNS("lost")
	if err != nil {
		return err
	}
	if err := errors.Join(unix.Unmount(path, unix.MNT_DETACH), os.Remove(path)); err != nil {
		return err
	}
	if err := podmanRemove("lost"); err != nil {
		return err
	}
	if err := h.empty(); err == nil {
		return errors.New("podman called DEL after all")
	}
	if err := gc("podman", "NETCONFPATH="+podmanNets); err != nil {
		return err
	}
	return eventually(h.empty)
}

// podmanEnd removes the networks; CNI plugins leave their bridges.
func (h *host) podmanEnd() error {
	return step("podman network rm; nothing is left behind", func() error {
		for _, args := range podmanNetworks {
			f := strings.Fields(args)
			if _, err := podman("network", "rm", f[len(f)-1]); err != nil {
				return err
			}
		}
		return eventually(h.empty)
	})
}
