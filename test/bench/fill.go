package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/rtnl"
)

// heldFill is how many attachments of a plugin a host has while one more is measured.
const heldFill = 500

// A filler describes how to make many attachments of one plugin.
type filler struct {
	plugin  string
	kind    rtnl.Kind                                       // the kernel must support it; nil: any kernel will do
	before  bool                                            // bridge makes the interface
	conf    func(i int) map[string]any                      // of attachment i
	prepare func(c *rtnl.Conn, count int, dir string) error // prepares the host; may be nil
}

// fillers are all plugins but dhcp: [daemons] measures that one.
func fillers(dir string) []filler {
	keys := func(conf map[string]any) func(int) map[string]any {
		return func(int) map[string]any { return conf }
	}
	onMaster := map[string]any{"master": master, "ipam": addresses("10.243.0.0/16")}
	alone := map[string]any{"ipam": addresses("10.243.0.0/16")}
	subnet := filepath.Join(dir, "subnet.env")
	return []filler{
		{plugin: "bridge", conf: keys(bridgeOn("10.243.0.0/16"))},
		{plugin: "ptp", conf: keys(map[string]any{"ipMasq": true, "ipam": addresses("10.243.0.0/16")})},
		{plugin: "macvlan", kind: rtnl.Macvlan{}, conf: keys(onMaster)},
		{plugin: "ipvlan", kind: rtnl.Ipvlan{}, conf: keys(onMaster)},
		{plugin: "vlan", kind: rtnl.Vlan{ID: 5}, conf: func(i int) map[string]any {
			return map[string]any{"master": master, "vlanId": i + 1, "ipam": addresses("10.243.0.0/16")}
		}},
		{
			plugin: "host-device",
			conf: func(i int) map[string]any {
				return map[string]any{"device": fmt.Sprint("dev", i), "ipam": addresses("10.243.0.0/16")}
			},
			prepare: func(c *rtnl.Conn, count int, _ string) (err error) {
				for i := range count {
					err = errors.Join(err, c.AddLink(rtnl.LinkSpec{Name: fmt.Sprint("dev", i), Peer: &rtnl.LinkSpec{Name: fmt.Sprint("cable", i)}}))
				}
				return err
			},
		},
		{plugin: "tap", conf: keys(alone)},
		{plugin: "dummy", kind: rtnl.Dummy{}, conf: keys(alone)},
		{plugin: "loopback", conf: keys(nil)},
		{plugin: "host-local", conf: keys(alone)},
		{plugin: "static", conf: keys(map[string]any{
			"ipam": map[string]any{"type": "static", "addresses": []map[string]string{{"address": "10.243.0.2/16"}}},
		})},
		{plugin: "portmap", before: true, conf: keys(map[string]any{"capabilities": map[string]bool{"portMappings": true}})},
		{plugin: "firewall", before: true, conf: keys(nil)},
		{plugin: "bandwidth", before: true, conf: keys(map[string]any{
			"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 16_000_000, "egressBurst": 1_600_000,
		})},
		{plugin: "tuning", before: true, conf: keys(map[string]any{"sysctl": map[string]string{"net.core.somaxconn": "512"}})},
		{plugin: "sbr", before: true, conf: keys(nil)},
		{plugin: "tc-redirect-tap", before: true, conf: keys(nil)},
		{plugin: "vrf", before: true, kind: rtnl.VRF{Table: 9}, conf: keys(map[string]any{"vrfname": "blue"})},
		{
			plugin: "flannel", conf: keys(map[string]any{"subnetFile": subnet}),
			prepare: func(_ *rtnl.Conn, _ int, dir string) error {
				const env = "FLANNEL_NETWORK=10.243.0.0/16\nFLANNEL_SUBNET=10.243.0.1/16\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n"
				return os.WriteFile(subnet, []byte(env), 0o600)
			},
		},
	}
}

// bridgeOn configures bridge with an address of each subnet.
func bridgeOn(subnets ...string) map[string]any {
	return map[string]any{"type": "bridge", "bridge": "bench0", "isGateway": true, "ipam": addresses(subnets...)}
}

// chain is the configuration of attachment i.
func (f filler) chain(i int) (list []map[string]any) {
	conf := map[string]any{"type": f.plugin}
	maps.Copy(conf, f.conf(i))
	if f.before {
		list = append(list, bridgeOn("10.243.0.0/16"))
	}
	return append(list, conf)
}

// filling compares each plugin on a host with many of its attachments and on one without any, in
// the same rounds.
func filling(l *lab) (lines []line) {
	all, err := newAttachments("fill", 0, l.crowd(heldFill))
	if err != nil {
		return []line{{What: "fill", Unit: "ms", Error: err.Error()}}
	}
	for _, f := range fillers(l.dir) {
		r, err := l.fillWith(f, all)
		if errors.Is(err, unix.EOPNOTSUPP) {
			lines = append(lines, line{What: f.plugin + ", ADD", Unit: "ms", Bar: barScale, Most: true, Note: "this kernel has none"})
			continue
		}
		if err != nil {
			lines = append(lines, line{What: f.plugin, Unit: "ms", Error: err.Error()})
			continue
		}
		for _, verb := range []string{"ADD", "DEL"} {
			lines = append(lines, within(f.plugin+", "+verb, r.of(verb, "full"), r.of(verb, "empty").milliseconds(), barScale))
		}
	}
	return lines
}

// fillWith measures one plugin and then deletes its attachments, since the next one uses the same
// containers.
func (l *lab) fillWith(f filler, all []attachment) (r results, err error) {
	if err := l.probeKind(f.kind); err != nil {
		return nil, err
	}
	var subjects []subject
	for name, others := range map[string][]attachment{"empty": nil, "full": all} {
		n, err := l.newFilled(f, name, len(others)+1)
		if err != nil {
			return nil, err
		}
		defer func() {
			if e := n.each(others, (*filledNet).detach); err == nil {
				err = e
			}
		}()
		if err := n.each(others, (*filledNet).attach); err != nil {
			return nil, err
		}
		s, err := n.subject(name, len(others))
		if err != nil {
			return nil, err
		}
		subjects = append(subjects, s)
	}
	return l.interleave(l.rounds(15), subjects...), nil
}

// A filledNet is a host with attachments of one plugin.
type filledNet struct {
	filler
	*network
	runtime *byExec

	mu   sync.Mutex
	held map[string]attached // by container
}

// newFilled makes a host prepared for count attachments.
func (l *lab) newFilled(f filler, name string, count int) (*filledNet, error) {
	n, err := l.networkOf("fill-"+f.plugin+"-"+name, l.ours, f.chain(0))
	if err != nil {
		return nil, err
	}
	if err := addMaster(n.host.NS); err != nil {
		return nil, err
	}
	c, err := rtnl.Dial(n.host.NS)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if f.prepare != nil {
		err = f.prepare(c, count, l.dir)
	}
	return &filledNet{filler: f, network: n, runtime: n.byExec(), held: map[string]attached{}}, err
}

// attach adds attachment i.
func (n *filledNet) attach(i int, a attachment) error {
	return n.host.Do(func() error {
		held, err := n.runtime.attach(a, n.filler.chain(i))
		n.mu.Lock()
		defer n.mu.Unlock()
		n.held[a.id] = held
		return err
	})
}

// detach deletes an attachment, also one that was not added.
func (n *filledNet) detach(_ int, a attachment) error {
	n.mu.Lock()
	held := n.held[a.id]
	n.mu.Unlock()
	return n.host.Do(func() error {
		_, err := n.runtime.detach(a, held)
		return err
	})
}

// each calls do for all attachments, two at a time; the first one by itself, since it creates the
// bridge.
func (n *filledNet) each(all []attachment, do func(*filledNet, int, attachment) error) error {
	if len(all) == 0 {
		return nil
	}
	errs := make([]error, len(all))
	errs[0] = do(n, 0, all[0])
	var wg sync.WaitGroup
	for start := 1; start <= 2; start++ {
		wg.Go(func() {
			for i := start; i < len(all); i += 2 {
				errs[i] = do(n, i, all[i])
			}
		})
	}
	wg.Wait()
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return fmt.Errorf("%s of container %d: %w", n.plugin, i, errs[i])
	}
	return nil
}

// subject attaches and detaches one more container, number i.
func (n *filledNet) subject(name string, i int) (subject, error) {
	a, err := newAttachment(n.name, 19999)
	return subject{name: name, steps: []string{"ADD", "DEL"}, round: func() (took []cost, err error) {
		settle()
		err = n.host.Do(func() error {
			held, err := n.runtime.attach(a, n.filler.chain(i))
			if err != nil {
				return err
			}
			del, err := n.runtime.detach(a, held)
			took = []cost{held.last, del}
			return err
		})
		return took, err
	}}, err
}
