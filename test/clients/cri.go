package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// callTime limits a call of the CRI plugin, with all its calls of plugins, on a busy machine. The
// kubelet waits two minutes and more.
const callTime = 5 * time.Minute

// dialCRI returns a client of containerd's CRI plugin, which connects at its first call.
func dialCRI(socket string) (cri.RuntimeServiceClient, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	return cri.NewRuntimeServiceClient(conn), nil
}

// ask makes one call within [callTime].
func ask[In, Out any](call func(context.Context, *In, ...grpc.CallOption) (*Out, error), in *In) (*Out, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	return call(ctx, in)
}

// A pod is one that the kubelet would request.
type pod struct {
	name  string
	ports []port

	annotations map[string]string

	id string // set by run
}

// A port is a port mapping, TCP unless udp is set.
type port struct {
	udp             bool
	host, container int32
}

// config is the request of the kubelet. Only containers with a log need the log directory, and
// these have none.
func (p *pod) config(cgroup string) *cri.PodSandboxConfig {
	c := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: p.name, Uid: "uid-" + p.name, Namespace: "default"},
		Hostname:     p.name,
		LogDirectory: work + "/pods",
		DnsConfig:    &cri.DNSConfig{Servers: []string{outsideAddr.String()}},
		Annotations:  p.annotations,
		Linux:        &cri.LinuxPodSandboxConfig{CgroupParent: cgroup},
	}
	for _, m := range p.ports {
		protocol := cri.Protocol_TCP
		if m.udp {
			protocol = cri.Protocol_UDP
		}
		c.PortMappings = append(c.PortMappings, &cri.PortMapping{Protocol: protocol, ContainerPort: m.container, HostPort: m.host})
	}
	return c
}

// ready returns an error with the runtime's message if the condition NetworkReady is false. The
// kubelet schedules no pods then.
func (h *host) ready() error {
	out, err := ask(h.cri.Status, &cri.StatusRequest{})
	if err != nil {
		return err
	}
	conditions := out.GetStatus().GetConditions()
	for _, c := range conditions {
		switch {
		case c.Type == cri.NetworkReady && !c.Status:
			return fmt.Errorf("network not ready: %s", c.Message)
		case c.Type == cri.NetworkReady:
			return nil
		}
	}
	return fmt.Errorf("no NetworkReady among %d conditions", len(conditions))
}

// run calls RunPodSandbox. The image's command is a web server, so the pause container already
// serves the page.
func (h *host) run(p *pod) error {
	out, err := ask(h.cri.RunPodSandbox, &cri.RunPodSandboxRequest{Config: p.config(h.cgroup)})
	p.id = out.GetPodSandboxId()
	return err
}

// addr returns the address that the kubelet would get: the first of eth0, which containerd takes
// from the result of the whole chain.
func (h *host) addr(p *pod) (netip.Addr, error) {
	out, err := ask(h.cri.PodSandboxStatus, &cri.PodSandboxStatusRequest{PodSandboxId: p.id})
	if err != nil {
		return netip.Addr{}, err
	}
	return netip.ParseAddr(out.GetStatus().GetNetwork().GetIp())
}

// stopPod stops a pod, remove deletes it. Each deletes its network.
func (h *host) stopPod(p *pod) error {
	_, err := ask(h.cri.StopPodSandbox, &cri.StopPodSandboxRequest{PodSandboxId: p.id})
	return err
}

func (h *host) remove(p *pod) error {
	_, err := ask(h.cri.RemovePodSandbox, &cri.RemovePodSandboxRequest{PodSandboxId: p.id})
	return err
}

// container starts one more container in a pod, which sleeps. It shares the pod's network, so no
// plugin is called.
func (h *host) container(p *pod, name string) (id string, err error) {
	made, err := ask(h.cri.CreateContainer, &cri.CreateContainerRequest{
		PodSandboxId: p.id,
		Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: name},
			Image:    &cri.ImageSpec{Image: image},
			Command:  []string{"sleep"},
			Args:     []string{"600"},
		},
		SandboxConfig: p.config(h.cgroup),
	})
	if err != nil {
		return "", err
	}
	_, err = ask(h.cri.StartContainer, &cri.StartContainerRequest{ContainerId: made.ContainerId})
	return made.ContainerId, err
}

// exec runs a shell command in a container. If it fails the error has its output.
func (h *host) exec(id, command string) (stdout string, err error) {
	out, err := ask(h.cri.ExecSync, &cri.ExecSyncRequest{ContainerId: id, Cmd: []string{"sh", "-c", command}, Timeout: 120})
	if err != nil {
		return "", err
	}
	if out.ExitCode != 0 {
		return string(out.Stdout), fmt.Errorf("%s: exit code %d: %s%s", command, out.ExitCode, out.Stdout, out.Stderr)
	}
	return string(out.Stdout), nil
}
