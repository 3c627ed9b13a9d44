package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
)

// A pod is a network namespace on a node with a server, attached to the network.
type pod struct {
	n      *node
	name   string // of the namespace
	id     string // container ID
	addrs  [2]netip.Addr
	server *server
}

func (p *pod) netnsPath() string { return "/run/netns/" + p.name }

// netns is the path of the pod's namespace outside the node.
func (p *pod) netns() namespace { return namespace(p.n.root(p.netnsPath())) }

// at is the address of the pod's server in a family: 0 is IPv4, 1 is IPv6.
func (p *pod) at(family int) netip.AddrPort { return netip.AddrPortFrom(p.addrs[family], port) }

// addPod makes a namespace and attaches it. args are flags of cni-exec add.
func (n *node) addPod(name, id string, args ...string) (*pod, error) {
	p := &pod{n: n, name: name, id: id}
	if _, err := n.run("ip", "netns", "add", name); err != nil {
		return nil, err
	}
	return p, p.attach(args...)
}

// attach calls ADD and checks that the result has an address of each of the node's subnets.
func (p *pod) attach(args ...string) error {
	n := p.n
	args = append([]string{"add", "--container-id", p.id}, args...)
	out, err := n.cni(append(args, network, p.netnsPath())...)
	if err != nil {
		return err
	}
	var result struct {
		IPs []struct{ Address netip.Prefix }
	}
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		return fmt.Errorf("%w in %s", err, out)
	}
	env, err := n.env()
	if err != nil {
		return err
	}
	subnets := env.subnets()
	if len(result.IPs) != 2 {
		return fmt.Errorf("%s: got %s, want an address of each of %s", p.name, out, subnets)
	}
	for i, ip := range result.IPs {
		if p.addrs[i] = ip.Address.Addr(); ip.Address.Masked() != subnets[i] {
			return fmt.Errorf("%s: got %s, want an address of %s", p.name, ip.Address, subnets[i])
		}
	}
	if p.server, err = serve(p.netns()); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pods[p.id] = p
	return nil
}

func (p *pod) check() error {
	_, err := p.n.cni("check", "--container-id", p.id, network, p.netnsPath())
	return err
}

// detach calls DEL and deletes the namespace.
func (p *pod) detach() error {
	if _, err := p.n.cni("del", "--container-id", p.id, network, p.netnsPath()); err != nil {
		return err
	}
	return p.vanish()
}

// vanish deletes the namespace without DEL.
func (p *pod) vanish() error {
	p.server.close() // an open socket would keep the namespace
	p.n.mu.Lock()
	delete(p.n.pods, p.id)
	p.n.mu.Unlock()
	_, err := p.n.run("ip", "netns", "del", p.name)
	return err
}

// mtu returns the MTU of the pod's eth0.
func (p *pod) mtu() (int, error) {
	out, err := p.n.run("ip", "-n", p.name, "-j", "link", "show", "eth0")
	if err != nil {
		return 0, err
	}
	var links []struct{ MTU int }
	if err := json.Unmarshal([]byte(out), &links); err != nil || len(links) != 1 {
		return 0, fmt.Errorf("%s: %w", out, err)
	}
	return links[0].MTU, nil
}
