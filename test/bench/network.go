package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cnibox/cnibox/test/sandbox"
)

// version is the newest one of the specification that the packaged reference supports. listVersion
// is that of lists, which cni-exec alone reads: the first one with GC.
const (
	version     = "1.0.0"
	listVersion = "1.1.0"
)

// A network is one network on one host, and the directory of the plugins it is made with.
type network struct {
	name    string // part of the paths of leases and cache
	host    *sandbox.NetNS
	plugins string
	confDir string // holds the list, for cni-exec
	list    []map[string]any
	filled  int          // number of containers that stay attached
	held    []attachment // those
}

// newNetwork makes a host with the network that the group chain measures.
func (l *lab) newNetwork(name, plugins string) (*network, error) {
	return l.networkOf(name, plugins, commonChain())
}

// networkOf makes a host with a network of the plugins in list.
func (l *lab) networkOf(name, plugins string, list []map[string]any) (*network, error) {
	host, err := l.newHost()
	if err != nil {
		return nil, err
	}
	n := &network{name: name, host: host, plugins: plugins, confDir: filepath.Join(l.dir, "conf", name), list: list}
	text, err := json.Marshal(map[string]any{"cniVersion": listVersion, "name": name, "plugins": list})
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(n.confDir, 0o700); err != nil {
		return nil, err
	}
	return n, os.WriteFile(filepath.Join(n.confDir, name+".conflist"), text, 0o600)
}

// chain returns a copy of the list, in the order of ADD.
func (n *network) chain() []map[string]any { return slices.Clone(n.list) }

// commonChain is a common list, with keys that the reference also has.
func commonChain() []map[string]any {
	return []map[string]any{
		{
			"type": "bridge", "bridge": "bench0", "isGateway": true, "ipMasq": true,
			"ipam": map[string]any{
				"type": "host-local", "dataDir": "/var/lib/cni/networks",
				"ranges": [][]map[string]string{{{"subnet": "10.240.0.0/16"}}},
				"routes": []map[string]string{{"dst": "0.0.0.0/0"}},
			},
		},
		{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}},
		{"type": "tuning", "sysctl": map[string]string{"net.core.somaxconn": "512"}},
	}
}

// listOfFive is the list of Kubernetes' nodes.
func listOfFive() []map[string]any {
	chain := commonChain()
	return []map[string]any{
		chain[0], chain[1], {"type": "firewall"}, {"type": "bandwidth", "capabilities": map[string]bool{"bandwidth": true}}, chain[2],
	}
}

// foldOf returns a list as one plugin.
func foldOf(list []map[string]any) map[string]any {
	enabled := map[string]bool{}
	for _, p := range list {
		if own, ok := p["capabilities"].(map[string]bool); ok {
			maps.Copy(enabled, own)
		}
	}
	return map[string]any{"type": "cnibox", "capabilities": enabled, "plugins": list}
}

// An attachment is one container of a network. Its namespace is made in advance, so no figure
// includes that.
type attachment struct {
	id    string
	netns *sandbox.NetNS
	port  int // of the host, published
}

// newAttachment makes the namespace of a container.
func newAttachment(name string, port int) (attachment, error) {
	ns, err := sandbox.NewNetNS(name)
	return attachment{id: name, netns: ns, port: port}, err
}

// newAttachments makes attachments for from <= i < to, each with its own host port.
func newAttachments(prefix string, from, to int) (all []attachment, err error) {
	for i := from; i < to; i++ {
		a, err := newAttachment(fmt.Sprintf("%s-%d", prefix, i), 20000+i)
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}

// capabilities are the values of all capabilities that lists here have.
func (a attachment) capabilities() map[string]any {
	return map[string]any{
		"portMappings": []map[string]any{{"hostPort": a.port, "containerPort": 80, "protocol": "tcp"}},
		"bandwidth":    map[string]int{"ingressRate": 80_000_000, "ingressBurst": 8_000_000, "egressRate": 80_000_000, "egressBurst": 8_000_000},
	}
}

// A caller acts as a runtime: it calls one verb for one attachment, in the thread's network
// namespace.
type caller interface {
	call(verb string, a attachment) error
}

// verbs in the order of a container's life.
var verbs = []string{"ADD", "CHECK", "DEL"}

// settle waits for the kernel to finish the last DEL. It frees links and set elements after an RCU
// grace period, and the next change of links or rules waits for that (some 10 ms): without a pause
// each subject would pay for the one before.
func settle() { time.Sleep(40 * time.Millisecond) }

// life makes a subject that attaches, checks and detaches a container.
func (n *network) life(name string, r caller, a attachment) subject {
	return subject{name: name, steps: verbs, round: func() (took []cost, err error) {
		settle()
		for _, verb := range verbs {
			d, err := n.timed(r, verb, a)
			if err != nil {
				n.timed(r, "DEL", a) // best effort
				return nil, fmt.Errorf("%s: %w", verb, err)
			}
			took = append(took, d)
		}
		return took, nil
	}}
}

// timed calls one verb on the host. The thread enters the host's namespace before the clock starts.
func (n *network) timed(r caller, verb string, a attachment) (took cost, err error) {
	err = n.host.Do(func() error {
		w := begin()
		err := r.call(verb, a)
		took = w.took()
		return err
	})
	return took, err
}
