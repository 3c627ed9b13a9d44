package main

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"time"
)

// callTime is how long a call of the CRI plugin may take, which includes all
// calls of plugins, on a busy machine. The kubelet waits two minutes and more.
const callTime = 5 * time.Minute

// Fields of runtime.v1 (k8s.io/cri-api, pkg/apis/runtime/v1/api.proto) stand in
// the calls below as numbers, with their names beside them.

// A pod is what the kubelet would ask for.
type pod struct {
	name  string
	ports []port

	annotations [][2]string // name, value

	id string // once it runs
}

// A port is a port mapping; TCP unless udp says otherwise.
type port struct {
	udp             bool
	host, container uint64
}

// config encodes PodSandboxConfig. Its log folder is needed only for containers
// with a log, which these have not.
func (p *pod) config(cgroup string) message {
	m := message{}.
		sub(1, message{}.text(1, p.name).text(2, "uid-"+p.name).text(3, "default")). // metadata: name, uid, namespace
		text(2, p.name).                                                             // hostname
		text(3, work+"/pods").                                                       // log_directory
		sub(4, message{}.text(1, outsideAddr.String()))                              // dns_config: servers
	for _, mapping := range p.ports {
		var protocol uint64 // enum Protocol: TCP 0, UDP 1, SCTP 2
		if mapping.udp {
			protocol = 1
		}
		m = m.sub(5, message{}.number(1, protocol).number(2, mapping.container).number(3, mapping.host)) // port_mappings
	}
	for _, a := range p.annotations {
		m = m.sub(7, message{}.text(1, a[0]).text(2, a[1])) // annotations: a map's key and value
	}
	return m.sub(8, message{}.text(1, cgroup)) // linux: cgroup_parent
}

// ask makes one call and returns the text at a path of the answer; without a path
// the answer has nothing of interest.
func (h *host) ask(method string, in message, path ...int) (string, error) {
	out, err := h.answer(method, in)
	if err != nil || len(path) == 0 {
		return "", err
	}
	return out.first(path...)
}

// answer makes one call within [callTime].
func (h *host) answer(method string, in message) (message, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	return h.cri.call(ctx, method, in)
}

// ready reports the condition NetworkReady as an error with the runtime's words. The
// kubelet keeps a node from pods while it is false.
func (h *host) ready() error {
	out, err := h.answer("Status", nil)
	if err != nil {
		return err
	}
	conditions, err := out.find(1, 1) // status, conditions: type, status, reason, message
	if err != nil {
		return err
	}
	for _, c := range conditions {
		kind, _ := c.first(1) // what find has read once can be read
		state, _ := c.first(2)
		words, _ := c.first(4)
		if kind == "NetworkReady" && state != "\x01" {
			return fmt.Errorf("network not ready: %s", words)
		} else if kind == "NetworkReady" {
			return nil
		}
	}
	return fmt.Errorf("no NetworkReady among %d conditions", len(conditions))
}

// run calls RunPodSandbox. The image's command is a web server, which is so the
// pod's first container.
func (h *host) run(p *pod) (err error) {
	p.id, err = h.ask("RunPodSandbox", message{}.sub(1, p.config(h.cgroup)), 1) // pod_sandbox_id
	return err
}

// addr returns the address that the kubelet would learn: the first of eth0, which
// containerd picks from the result of the whole chain.
func (h *host) addr(p *pod) (netip.Addr, error) {
	ip, err := h.ask("PodSandboxStatus", message{}.text(1, p.id), 1, 5, 1) // status, network, ip
	if err != nil {
		return netip.Addr{}, err
	}
	return netip.ParseAddr(ip)
}

// stopPod ends a pod, remove forgets it. Each deletes its network.
func (h *host) stopPod(p *pod) error {
	_, err := h.ask("StopPodSandbox", message{}.text(1, p.id))
	return err
}

func (h *host) remove(p *pod) error {
	_, err := h.ask("RemovePodSandbox", message{}.text(1, p.id))
	return err
}

// container starts one more container in a pod, which sleeps. It shares the pod's
// network, so no plugin hears of it.
func (h *host) container(p *pod, name string) (id string, err error) {
	config := message{}.
		sub(1, message{}.text(1, name)).  // metadata: name
		sub(2, message{}.text(1, image)). // image
		text(3, "sleep").text(4, "600")   // command, args
	create := message{}.text(1, p.id).sub(2, config).sub(3, p.config(h.cgroup))
	if id, err = h.ask("CreateContainer", create, 1); err != nil {
		return "", err
	}
	_, err = h.ask("StartContainer", message{}.text(1, id))
	return id, err
}

// exec runs a shell command in a container. A command that fails is an error with
// all it wrote.
func (h *host) exec(id, command string) (stdout string, err error) {
	out, err := h.answer("ExecSync", message{}.text(1, id).text(2, "sh").text(2, "-c").text(2, command).number(3, 120)) // cmd, timeout in s
	if err != nil {
		return "", err
	}
	if stdout, err = out.first(1); err != nil {
		return "", err
	}
	if code, _ := out.first(3); code != "" && code != "\x00" {
		words, _ := out.first(2)
		return stdout, fmt.Errorf("%s: exit code %s: %s%s", command, strconv.Quote(code), stdout, words)
	}
	return stdout, nil
}
