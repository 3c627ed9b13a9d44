package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/cnibox/cnibox/test/sandbox"
)

// published is the host port of port 80 in ctr's containers. It is in the configuration, since ctr
// has no option for ports.
const published = 8080

// configure writes the network of the README with bandwidth. ports is a JSON list of the capability
// portMappings; a runtime that passes no ports leaves this runtimeConfig as it is.
func (h *host) configure(ports string) error {
	const list = `{
  "cniVersion": "%s",
  "name": "` + network + `",
  "plugins": [
    { "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
      "dns": { "nameservers": ["198.51.100.2"] },
      "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.88.0.0/16" }]],
                "routes": [{ "dst": "0.0.0.0/0" }] } },
    { "type": "portmap", "capabilities": { "portMappings": true }%s },
    { "type": "bandwidth", "capabilities": { "bandwidth": true } }
  ]
}
`
	if ports != "" {
		ports = `, "runtimeConfig": { "portMappings": ` + ports + ` }`
	}
	return h.writeList(filepath.Join(confDir, "10-clients.conflist"), fmt.Appendf(nil, list, h.release.cniVersion, ports))
}

// writeList writes a network, and folds it in a trial of folded lists.
func (h *host) writeList(name string, text []byte) error {
	if h.folded {
		plain := filepath.Join(work, "plain.conflist")
		if err := os.WriteFile(plain, text, 0o600); err != nil {
			return err
		}
		folded, _, err := (sandbox.Call{Argv: []string{filepath.Join(pluginDir, "cnibox"), "fold", plain}}).Run()
		if err != nil {
			return err
		}
		text = folded
	}
	// In place: containerd 1.6 reloads when a file is written, not when one is renamed.
	return os.WriteFile(name, text, 0o600)
}

// installation makes the links as the README says, and those of the recorder.
func (h *host) installation() error {
	return step("cnibox install and verify "+pluginDir, func() error {
		binary, err := os.ReadFile(h.bin)
		if err != nil {
			return err
		}
		cnibox := filepath.Join(pluginDir, "cnibox")
		if err := os.WriteFile(cnibox, binary, 0o755); err != nil {
			return err
		}
		for _, verb := range []string{"install", "verify"} {
			if _, _, err := (sandbox.Call{Argv: []string{cnibox, verb, pluginDir}}).Run(); err != nil {
				return err
			}
		}
		return h.installRecorder()
	})
}

// installRecorder installs this program in place of the plugins that it records, and the real
// host-local, which bridge calls.
func (h *host) installRecorder() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	plugins := recorded
	if h.folded {
		plugins = recordedFolded
	}
	for _, plugin := range plugins {
		if err := os.Symlink(self, filepath.Join(criDir, plugin)); err != nil {
			return err
		}
	}
	if h.folded { // it is in cnibox, as all members are
		return nil
	}
	return os.Symlink(filepath.Join(pluginDir, "host-local"), filepath.Join(criDir, "host-local"))
}

// ctrRun starts a container with the network. The only option beyond a user's is the control group,
// by which it can be found.
func (h *host) ctrRun(id string, flags []string, command ...string) (string, error) {
	args := []string{"run", "--cni", "--cgroup", h.cgroup + "/" + id,
		"--mount", "type=bind,src=" + resolvConf + ",dst=/etc/resolv.conf,options=rbind:ro"}
	args = append(append(args, flags...), image, id)
	return h.ctr(append(args, command...)...)
}

// ctr users have to mount resolvConf: ctr ignores dns in a result.
const resolvConf = work + "/resolv.conf"

// ctrContainers runs a server and a client with `ctr run --rm --cni`. ctr calls ADD with
// /proc/PID/ns/net, and DEL with an empty CNI_NETNS after the process has ended.
func (h *host) ctrContainers() error {
	ports := fmt.Sprintf(`[{ "hostPort": %d, "containerPort": 80, "protocol": "tcp" }]`, published)
	if err := os.WriteFile(resolvConf, fmt.Appendf(nil, "nameserver %s\n", outsideAddr), 0o644); err != nil {
		return err
	}
	if err := h.configure(ports); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		_, err := h.ctrRun("web", []string{"--rm"})
		ended <- err
	}()
	var web netip.Addr
	err := step("ctr run --rm --cni: address, and the host reaches the container", func() error {
		return eventually(func() (err error) {
			if web, err = address("default-web"); err != nil {
				return err
			}
			return fetchOnce(nil, netip.AddrPortFrom(web, 80))
		})
	})
	if err != nil {
		return err
	}
	for _, next := range []func() error{
		h.publishedPort, h.takenPort, func() error { return h.client(web) },
	} {
		if err := next(); err != nil {
			return err
		}
	}
	return step("the server is killed; nothing is left behind", func() error {
		if _, err := h.ctr("task", "kill", "--signal", "KILL", "web"); err != nil {
			return err
		}
		if err := <-ended; err == nil || !strings.Contains(err.Error(), "137") {
			return fmt.Errorf("ctr run ended with %s, want exit status 137 of a killed container", fmt.Sprint(err))
		}
		return eventually(h.empty)
	})
}

// publishedPort checks the port of the first server.
func (h *host) publishedPort() error {
	return step("the published port, from the host and from outside", func() error { return h.publishedAt(published) })
}

// publishedAt fetches a page by 127.0.0.1, which needs route_localnet and masquerading, by the
// host's address from the host itself, and from outside.
func (h *host) publishedAt(port uint16) error {
	away := netip.AddrPortFrom(hostAddr, port)
	return errors.Join(fetch(nil, netip.AddrPortFrom(local, port)), fetch(nil, away), fetch(h.outside.NS, away))
}

// takenPort checks that the error names the owner of the port, and that nothing is left.
func (h *host) takenPort() error {
	return step("a second container cannot take the port, and the error names its owner", func() error {
		before, err := h.leftovers()
		if err != nil {
			return err
		}
		_, err = h.ctrRun("thief", nil)
		if err == nil || !strings.Contains(err.Error(), network+"/default-web/eth0") {
			return fmt.Errorf("ctr run said %s", fmt.Sprint(err))
		}
		// ctr does not delete the container that it could not attach.
		h.ctr("task", "rm", "--force", "thief")
		if _, err := h.ctr("container", "rm", "thief"); err != nil {
			return err
		}
		return eventually(func() error {
			after, err := h.leftovers()
			if err == nil && len(after) != len(before) {
				err = fmt.Errorf("left behind: %q", after)
			}
			return err
		})
	})
}

// client checks the network from inside. The first container's port is still published, although
// the network's file no longer has it.
func (h *host) client(web netip.Addr) error {
	return step("from inside: gateway, other container, published port, names outside", func() error {
		if err := h.configure(""); err != nil {
			return err
		}
		commands := []string{
			"ip -4 address show dev eth0",
			"ping -c 1 -W 30 " + gateway.String(),
			"ping -c 1 -W 30 " + outsideAddr.String(),
			fetchCommand(netip.AddrPortFrom(web, 80), timeLimit),
			fetchCommand(netip.AddrPortFrom(hostAddr, published), timeLimit),
			"nslookup " + name,
		}
		out, err := h.ctrRun("client", []string{"--rm"}, "sh", "-c", strings.Join(commands, " && "))
		if err != nil {
			return err
		}
		if n := strings.Count(out, page); n != 2 || !strings.Contains(out, nameAddr.String()) || !strings.Contains(out, "inet 10.88.0.") {
			return fmt.Errorf("got the page %d times, want 2: %s", n, out)
		}
		return nil
	})
}
