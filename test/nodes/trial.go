package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// A backend is a configuration of flanneld, and the expected properties of pods.
type backend struct {
	name   string
	conf   string // net-conf
	ipMasq bool   // flanneld masquerades, else the plugin's delegate
	mtu    int    // bytes, of the pods' links
	path   [2]int // bytes, the largest packet between nodes, of IPv4 and IPv6
	// source is the prefix of the source address of packets from a node to the other node.
	source func(e subnetEnv, n *node, family int) netip.Prefix
}

// SubnetLen leaves 29 addresses for a node's pods, so two boots of 20 pods only fit if the first
// one's leases are released. flanneld subtracts 50 bytes for vxlan in both families, but IPv6 needs
// 70: the path MTU is less than that of the pods' links.
var backends = []*backend{
	{
		name: "vxlan", ipMasq: true, mtu: 1450, path: [2]int{1450, 1430},
		conf: `{"Network": "10.244.0.0/16", "SubnetLen": 27, "EnableIPv6": true, "IPv6Network": "fd00:10:244::/56",
			"Backend": {"Type": "vxlan"}}`,
		source: func(e subnetEnv, _ *node, family int) netip.Prefix { return e.subnets()[family] },
	},
	{
		name: "host-gw", ipMasq: true, mtu: 1500, path: [2]int{1500, 1500},
		conf: `{"Network": "10.244.0.0/16", "SubnetLen": 27, "EnableIPv6": true, "IPv6Network": "fd00:10:244::/56",
			"EnableNFTables": true, "Backend": {"Type": "host-gw"}}`,
		source: func(_ subnetEnv, n *node, family int) netip.Prefix {
			return netip.PrefixFrom(n.addrs[family], n.addrs[family].BitLen())
		},
	},
	{
		name: "no-masq", mtu: 1500,
		conf: `{"Network": "10.244.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00:10:244::/56", "Backend": {"Type": "host-gw"}}`,
	},
}

// families are the names of an array's two elements.
var families = [2]string{"IPv4", "IPv6"}

// crowd is the number of a node's pods besides the first one.
const crowd = 20

// Error codes of the specification: try again later, and plugin not available.
const (
	codeTryAgain = 11
	codeNotReady = 50
)

// A trial runs the stages of a cluster with one backend.
type trial struct {
	*cluster
	*backend
	a, b *node
	web  map[*node]*pod // the first pod of a node; its server is published on port 8080
}

// trial runs the stages with each backend.
func (c *cluster) trial() error {
	v, err := c.versions()
	if err != nil {
		return err
	}
	fmt.Println("nodes:", v)
	if err := c.step("etcd answers", c.startEtcd); err != nil {
		return err
	}
	for _, b := range backends {
		t := &trial{cluster: c, backend: b, web: map[*node]*pod{}}
		parts := []func() error{
			t.start, t.pods, t.traffic, t.sizes, t.ports, t.restarted, t.withoutEtcd, t.crowded, t.vanished, t.rebooted, t.end,
		}
		if !b.ipMasq {
			parts = []func() error{t.start, t.pods, t.delegateMasquerades, t.end}
		}
		for _, part := range parts {
			if err := part(); err != nil {
				return err
			}
		}
		for _, n := range c.nodes {
			if err := n.shutdown(); err != nil {
				return err
			}
		}
	}
	return nil
}

// A stage is one step of a part.
type stage struct {
	text string
	do   func() error
}

// walk runs the stages up to the first that fails.
func (t *trial) walk(stages ...stage) error {
	for _, s := range stages {
		if err := t.step(fmt.Sprintf("%-8s%s", t.name, s.text), s.do); err != nil {
			return err
		}
	}
	return nil
}

// each calls fn with both directions between the nodes, in both families.
func (t *trial) each(fn func(from, to *node, family int) error) error {
	for family := range families {
		for _, n := range t.nodes {
			if err := fn(n, t.other(n), family); err != nil {
				return fmt.Errorf("%s from %s: %w", families[family], n.name, err)
			}
		}
	}
	return nil
}

func (t *trial) other(n *node) *node {
	if n == t.a {
		return t.b
	}
	return t.a
}

// start boots two nodes and starts flanneld on both.
func (t *trial) start() error {
	return t.walk(
		stage{"two nodes with their own network, /run, /var/lib/cni and boot ID", func() error {
			if err := t.setNetConf(t.conf); err != nil {
				return err
			}
			if err := t.startNodes(t.name, t.ipMasq); err != nil {
				return err
			}
			t.a, t.b = t.nodes[0], t.nodes[1]
			return nil
		}},
		stage{"before flanneld: STATUS has code 50, ADD code 11 and leaves nothing", func() error {
			return parallel(t.nodes, (*node).notReady)
		}},
		stage{"flanneld on both nodes writes subnet.env, and STATUS is ready", func() error {
			// Sequentially: flanneld's key of a lease has the subnets of both families, so two
			// nodes that join concurrently may get the same IPv4 subnet.
			for _, n := range t.nodes {
				if err := t.joins(n); err != nil {
					return err
				}
			}
			return nil
		}},
	)
}

// joins starts flanneld on a node for the first time.
func (t *trial) joins(n *node) error {
	if err := n.startFlanneld(); err != nil {
		return err
	}
	e, err := n.env()
	if err != nil {
		return err
	}
	if e["FLANNEL_MTU"] != fmt.Sprint(t.mtu) || e["FLANNEL_IPMASQ"] != fmt.Sprint(t.ipMasq) {
		return fmt.Errorf("got %v, want an MTU of %d and IPMASQ %t", e, t.mtu, t.ipMasq)
	}
	_, err = n.cni("status", network)
	return err
}

// notReady checks STATUS and ADD of a node without subnet.env.
func (n *node) notReady() error {
	before, err := n.left()
	if err != nil {
		return err
	}
	if err := n.wantCode(codeNotReady, "status", network); err != nil {
		return err
	}
	if _, err := n.run("ip", "netns", "add", "early"); err != nil {
		return err
	}
	if err := n.wantCode(codeTryAgain, "add", network, "/run/netns/early"); err != nil {
		return err
	}
	after, err := n.left()
	for _, what := range after { // fewer leases of an earlier boot may be left
		if !slices.Contains(before, what) {
			err = errors.Join(err, fmt.Errorf("the failed ADD left %s", what))
		}
	}
	if err == nil {
		_, err = n.run("ip", "netns", "del", "early")
	}
	return err
}

// wantCode checks that a verb of cni-exec fails with a code.
func (n *node) wantCode(want int, verb string, args ...string) error {
	out, err := n.cni(append([]string{verb, "-o", "json"}, args...)...)
	if err == nil {
		return fmt.Errorf("%s: %s succeeded, want code %d", n.name, verb, want)
	}
	var e struct {
		Code     int
		Findings []struct{ Code int } // of status
	}
	decoded := json.Unmarshal([]byte(out), &e)
	if len(e.Findings) > 0 {
		e.Code = e.Findings[0].Code
	}
	if decoded != nil || e.Code != want {
		return fmt.Errorf("want code %d: %w", want, err)
	}
	return nil
}

// pods attaches the first pod of each node.
func (t *trial) pods() error {
	return t.walk(
		stage{"a pod on each node has an address of each of its node's subnets", func() error {
			for _, n := range t.nodes {
				p, err := n.addPod("web", "web", "-p", "8080:5000", "-p", "8080:5000/udp")
				if err != nil {
					return err
				}
				t.web[n] = p
			}
			return nil
		}},
		stage{"CHECK passes", t.checkAll},
	)
}

func (t *trial) checkAll() error {
	return parallel(t.nodes, func(n *node) error {
		for _, p := range n.pods {
			if err := p.check(); err != nil {
				return err
			}
		}
		return nil
	})
}
