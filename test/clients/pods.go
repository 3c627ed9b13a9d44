package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// pods runs two pods: one serves on published ports, the other has a second container that reaches
// the first.
func (h *host) pods() error {
	web := &pod{name: "web", ports: []port{{host: 8081, container: 80}, {udp: true, host: 8053, container: 53}}}
	client := &pod{name: "client"}
	return walk(
		stage{"CRI: Status says that the network is ready", func() error { return eventually(h.ready) }},
		stage{"RunPodSandbox with port mappings; reached directly and from outside", func() error { return h.runWeb(web) }},
		stage{"what the plugins got: HostPort, loopback at 0.3.1", func() error { return addsAreAsExpected(web) }},
		stage{"a container in a second pod reaches the first pod and outside names", func() error { return h.runClient(client, web) }},
		stage{"StopPodSandbox, RemovePodSandbox: two DELs, and the pod's traces go", func() error { return h.endWeb(web) }},
		stage{"the second pod's too; nothing is left behind", func() error {
			return errors.Join(h.stopPod(client), h.remove(client), eventually(h.empty))
		}},
	)
}

// asked: containerd 2 calls STATUS of each plugin of a network of 1.1.0.
func (h *host) asked() error {
	return step("CRI: Status has asked the plugins by STATUS", func() error {
		for _, plugin := range []string{"bridge", "portmap", "bandwidth"} {
			asked, err := callsOf(plugin, "STATUS", "")
			if err != nil {
				return err
			}
			if len(asked) == 0 || asked[0].Conf.CNIVersion != "1.1.0" {
				return fmt.Errorf("STATUS of %s: %+v", plugin, asked)
			}
		}
		return nil
	})
}

// runWeb starts the server and fetches its page from the host and from outside. A name server in
// the same namespace answers at the UDP port.
func (h *host) runWeb(p *pod) error {
	if err := h.run(p); err != nil {
		return err
	}
	ip, err := h.addr(p)
	if err != nil {
		return err
	}
	err = errors.Join(fetch(nil, netip.AddrPortFrom(ip, 80)),
		fetch(h.outside.NS, netip.AddrPortFrom(hostAddr, uint16(p.ports[0].host))))
	if err != nil {
		return err
	}
	adds, err := callsOf("portmap", "ADD", p.id)
	if err != nil {
		return err
	}
	if len(adds) != 1 {
		return fmt.Errorf("ADDs of portmap: %+v", adds)
	}
	stop, err := serveIn(adds[0].NetNS, netip.AddrPortFrom(ip, 53))
	if err != nil {
		return err
	}
	defer stop()
	return lookup(h.outside.NS, netip.AddrPortFrom(hostAddr, uint16(p.ports[1].host)))
}

// addsAreAsExpected checks that containerd's calls have what this trial is for: keys as Go spells
// them, and a loopback of an old version in the same namespace.
func addsAreAsExpected(p *pod) error {
	ports, err := callsOf("portmap", "ADD", p.id)
	if err != nil {
		return err
	}
	if len(ports) != 1 || !strings.Contains(string(ports[0].Conf.RuntimeConfig), `"HostPort":8081`) {
		return fmt.Errorf("portmap got %+v", ports)
	}
	lo, err := callsOf("loopback", "ADD", p.id)
	if err != nil {
		return err
	}
	if len(lo) != 1 || lo[0].Conf.CNIVersion != "0.3.1" || lo[0].IfName != "lo" || lo[0].NetNS != ports[0].NetNS {
		return fmt.Errorf("loopback got %+v", lo)
	}
	return nil
}

// runClient fetches the page from a second pod, by the first one's address and by the published
// port, and looks up a name by the pod's dns_config.
func (h *host) runClient(p, web *pod) error {
	if err := h.run(p); err != nil {
		return err
	}
	ip, err := h.addr(web)
	if err != nil {
		return err
	}
	id, err := h.container(p, "shell")
	if err != nil {
		return err
	}
	out, err := h.exec(id, strings.Join([]string{
		"ip -4 address show dev lo", fetchCommand(netip.AddrPortFrom(ip, 80), timeLimit),
		fetchCommand(netip.AddrPortFrom(hostAddr, uint16(web.ports[0].host)), timeLimit), "nslookup " + name,
	}, " && "))
	if err != nil {
		return err
	}
	if strings.Count(out, page) != 2 || !strings.Contains(out, nameAddr.String()) || !strings.Contains(out, "inet 127.0.0.1/8") {
		return fmt.Errorf("the container saw %s", out)
	}
	return nil
}

// endWeb: the first DEL has the namespace and the result and must delete everything; the second one
// has neither and must succeed. [host.goneNamespace] has only the second kind.
func (h *host) endWeb(p *pod) error {
	ip, err := h.addr(p)
	if err != nil {
		return err
	}
	if err := h.stopPod(p); err != nil {
		return err
	}
	err = eventually(func() error {
		left, err := h.leftovers()
		for _, trace := range left {
			if strings.Contains(trace, p.id) || trace == "lease "+ip.String() {
				err = errors.Join(err, fmt.Errorf("left behind by the first DEL: %s", trace))
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := h.remove(p); err != nil {
		return err
	}
	for _, plugin := range []string{"bridge", "portmap"} {
		dels, err := callsOf(plugin, "DEL", p.id)
		if err != nil {
			return err
		}
		if len(dels) != 2 || dels[0].NetNS == "" || dels[0].Conf.PrevResult == nil || dels[1].NetNS != "" || dels[1].Conf.PrevResult != nil {
			return fmt.Errorf("DELs of %s: %+v", plugin, dels)
		}
	}
	return nil
}

// crowd starts pods concurrently, as a node does after boot, and stops them concurrently. Their
// plugins compete for the bridge, the leases and the rules.
func (h *host) crowd() error {
	const many = 20
	return step(fmt.Sprintf("%d pods at the same time: one address each, and all are gone after", many), func() error {
		pods := make([]*pod, many)
		for i := range pods {
			pods[i] = &pod{name: fmt.Sprintf("pod%d", i), ports: []port{{host: 9000 + int32(i), container: 80}}}
		}
		if err := forEachPod(pods, h.run); err != nil {
			return err
		}
		var addrs []netip.Addr
		for _, p := range pods {
			ip, err := h.addr(p)
			if err != nil {
				return err
			}
			addrs = append(addrs, ip)
			at := netip.AddrPortFrom(hostAddr, uint16(p.ports[0].host))
			if err := fetch(h.outside.NS, at); err != nil {
				return err
			}
		}
		slices.SortFunc(addrs, netip.Addr.Compare)
		if n := len(slices.Compact(addrs)); n != many {
			return fmt.Errorf("%d pods have %d addresses", many, n)
		}
		if err := forEachPod(pods, h.stopPod); err != nil {
			return err
		}
		return errors.Join(forEachPod(pods, h.remove), eventually(h.empty))
	})
}

// forEachPod calls do for all pods concurrently and joins the errors.
func forEachPod(pods []*pod, do func(*pod) error) error {
	results := make(chan error)
	for _, p := range pods {
		go func() { results <- do(p) }()
	}
	var errs []error
	for range pods {
		errs = append(errs, <-results)
	}
	return errors.Join(errs...)
}

// goneNamespace: the namespace is deleted without containerd, as in a crash of the host, so there
// is only the DEL without a namespace. The links are gone with it; DEL has to delete the lease, the
// rules and the cached result.
func (h *host) goneNamespace() error {
	return step("a pod whose namespace is gone: the DEL without one does it all", func() error {
		p := &pod{name: "lost", ports: []port{{host: 8082, container: 80}}}
		if err := h.run(p); err != nil {
			return err
		}
		adds, err := callsOf("bridge", "ADD", p.id)
		if err != nil {
			return err
		}
		if len(adds) != 1 {
			return fmt.Errorf("ADDs of bridge: %+v", adds)
		}
		path, err := filepath.EvalSymlinks(adds[0].NetNS)
		if err != nil {
			return err
		}
		if err := errors.Join(unix.Unmount(path, unix.MNT_DETACH), os.Remove(path)); err != nil {
			return err
		}
		if err := errors.Join(h.stopPod(p), h.remove(p)); err != nil {
			return err
		}
		dels, err := callsOf("portmap", "DEL", p.id)
		if err != nil {
			return err
		}
		for _, d := range dels {
			if d.NetNS != "" {
				return fmt.Errorf("containerd gave the namespace %s", d.NetNS)
			}
		}
		return eventually(h.empty)
	})
}
