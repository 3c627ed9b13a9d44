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

// Directories of Nomad, and the root of its tasks: busybox and the page.
const (
	nomadDir  = work + "/nomad"
	nomadNets = nomadDir + "/net.d"
	nomadRoot = nomadDir + "/root"
	nomadLog  = nomadDir + "/log"
)

// nomadConf runs a server and a client in one process. Ports are published on the address of its
// interface.
const nomadConf = `data_dir = "` + nomadDir + `/data"
bind_addr = "127.0.0.1"
disable_update_check = true
advertise {
  http = "127.0.0.1"
  rpc = "127.0.0.1"
  serf = "127.0.0.1"
}
server {
  enabled = true
  bootstrap_expect = 1
}
client {
  enabled = true
  network_interface = "up0"
  cni_path = "` + pluginDir + `"
  cni_config_dir = "` + nomadNets + `"
  cgroup_parent = "%s/nomad"
  chroot_env {
    "` + nomadRoot + `/bin" = "/bin"
    "` + nomadRoot + `/www" = "/www"
    "` + nomadRoot + `/etc/passwd" = "/etc/passwd"
  }
  options {
    "driver.allowlist" = "exec"
  }
}
`

// nomadList is our own network, which a job names as cni/own.
const nomadList = `{
  "cniVersion": "1.0.0",
  "name": "own",
  "plugins": [
    { "type": "loopback" },
    { "type": "bridge", "bridge": "own0", "isGateway": true, "ipMasq": true,
      "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.82.0.0/24" }]], "routes": [{ "dst": "0.0.0.0/0" }] } },
    { "type": "portmap", "capabilities": { "portMappings": true } }
  ]
}
`

// nomadJob serves the page on a port of the host, or runs a command once.
const nomadJob = `job %q {
  datacenters = ["dc1"]
  type = %q
  group "group" {
    network {
      mode = %q
      %s
    }
    task "task" {
      driver = "exec"
      config {
        command = %q
        args = ["-c", %q]
      }
      resources {
        cpu = 50
        memory = 64
      }
    }
  }
}
`

// Host ports of Nomad's containers.
const nomadPort, nomadOwn = 8380, 8381

// nomad runs jobs in Nomad's own network and in one of ours.
func (h *host) nomad() error {
	defer func() {
		if h.nomadd != nil {
			h.nomadd.Process.Signal(unix.SIGTERM)
			h.nomadd.Wait()
		}
	}()
	return walk(
		stage{"nomad agent: it knows the plugins by their versions", h.startNomad},
		stage{`mode = "bridge": a port, from the host and from outside`, func() error { return h.nomadServe("web", "bridge", nomadPort) }},
		stage{`mode = "bridge": a job that reaches the first, and names outside`, func() error { return h.nomadAsk("bridge", nomadPort, "172.26.") }},
		stage{`mode = "cni/own": the same`, func() error {
			return errors.Join(h.nomadServe("own", "cni/own", nomadOwn), h.nomadAsk("cni/own", nomadOwn, "10.82."))
		}},
		stage{"nomad job stop; nothing is left behind", func() error {
			return errors.Join(nomadStop("web"), nomadStop("own"), eventually(h.empty))
		}},
	)
}

func nomadctl(args ...string) (string, error) {
	out, _, err := sandbox.Call{Argv: append([]string{"nomad"}, args...), Env: os.Environ()}.Run()
	return string(out), err
}

// startNomad returns when the node is ready; it has called each plugin with VERSION by then.
func (h *host) startNomad() error {
	err := errors.Join(os.MkdirAll(nomadNets, 0o755), os.MkdirAll(filepath.Join(nomadRoot, "www"), 0o755),
		os.MkdirAll(filepath.Join(nomadRoot, "etc"), 0o755), busyboxIn(nomadRoot))
	if err != nil {
		return err
	}
	conf := filepath.Join(nomadDir, "nomad.hcl")
	err = errors.Join(
		os.WriteFile(conf, fmt.Appendf(nil, nomadConf, h.cgroup), 0o600),
		h.writeList(filepath.Join(nomadNets, "own.conflist"), []byte(nomadList)),
		os.WriteFile(filepath.Join(nomadRoot, "www/index.html"), []byte(page), 0o644),
		os.WriteFile(filepath.Join(nomadRoot, "etc/passwd"), []byte("nobody:x:65534:65534::/:/bin/sh\n"), 0o644))
	if err != nil {
		return err
	}
	output, err := os.Create(nomadLog)
	if err != nil {
		return err
	}
	defer output.Close()
	h.nomadd = exec.Command("nomad", "agent", "-config", conf)
	h.nomadd.Stdout, h.nomadd.Stderr = output, output
	if err := h.nomadd.Start(); err != nil {
		return err
	}
	return withNomadLog(eventually(func() error {
		text, err := nomadctl("node", "status", "-self", "-verbose")
		if err == nil && (!strings.Contains(text, "plugins.cni.version.bridge") || !strings.Contains(text, "+cnibox.") || !strings.Contains(text, "driver.exec")) {
			err = fmt.Errorf("node: %s", text)
		}
		return err
	}))
}

// withNomadLog adds the daemon's log to an error.
func withNomadLog(err error) error {
	if err == nil {
		return nil
	}
	log, _ := os.ReadFile(nomadLog)
	return fmt.Errorf("%w: %s", err, log)
}

// nomadRun writes a job and starts it.
func (h *host) nomadRun(name, kind, mode, port, command string) error {
	file := filepath.Join(nomadDir, name+".nomad")
	if err := os.WriteFile(file, fmt.Appendf(nil, nomadJob, name, kind, mode, port, "/bin/sh", command), 0o600); err != nil {
		return err
	}
	_, err := nomadctl("job", "run", "-detach", file)
	return err
}

// nomadServe starts a server and fetches the page from its port.
func (h *host) nomadServe(name, mode string, port uint16) error {
	mapping := fmt.Sprintf("port %q {\n static = %d\n to = 8000\n }", "http", port)
	if err := h.nomadRun(name, "service", mode, mapping, "exec httpd -f -p 8000 -h /www"); err != nil {
		return err
	}
	at := netip.AddrPortFrom(hostAddr, port)
	if err := errors.Join(fetch(nil, at), fetch(h.outside.NS, at)); err != nil {
		text, _ := nomadctl("job", "status", "-verbose", name)
		return withNomadLog(fmt.Errorf("%w: %s", err, text))
	}
	return nil
}

// nomadAsk checks the port of a server and a lookup of a name from inside a container.
func (h *host) nomadAsk(mode string, port uint16, addr string) error {
	command := asksOutside + " && " + fetchCommand(netip.AddrPortFrom(hostAddr, port), timeLimit)
	if err := h.nomadRun("ask", "batch", mode, "", command); err != nil {
		return err
	}
	err := eventually(func() error {
		out, err := nomadctl("alloc", "logs", "-job", "ask")
		if err == nil && !strings.HasSuffix(out, page) {
			err = fmt.Errorf("no page: %s", out)
		}
		if err != nil {
			return err
		}
		return namesFound(out, addr)
	})
	return errors.Join(err, nomadStop("ask"))
}

func nomadStop(name string) error {
	_, err := nomadctl("job", "stop", "-purge", "-detach", name)
	return err
}
