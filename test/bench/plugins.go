package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
)

// Limits of single plugins: how many times faster than the reference their ADD must be.
const (
	barPtp       = 100
	barFirewall  = 8
	barBandwidth = 1.6
	barSubLink   = 2 // macvlan, ipvlan and vlan
)

// master is the parent link on every host of a trial.
const master = "m0"

// A trial is the ADD and DEL of one plugin.
type trial struct {
	what   string
	before map[string]any // plugin called before it, not measured; nil: none
	plugin map[string]any // the one that is measured
	kind   rtnl.Kind      // the kernel must support it; nil: any kernel will do
	rounds int
	bar    float64 // of ADD
}

// trials are one configuration of each plugin, with keys that the reference has. ptp has few
// rounds: the reference waits two seconds for duplicate address detection on a link where no other
// host can be.
func trials() []trial {
	bridge := bridgeOn("10.243.0.0/16")
	return []trial{
		{what: "ptp, dual stack", rounds: 4, bar: barPtp, plugin: map[string]any{
			"type": "ptp", "ipMasq": true, "ipam": addresses("10.243.0.0/16", "fd00:243::/64"),
		}},
		{what: "firewall", rounds: 20, bar: barFirewall, before: bridge, plugin: map[string]any{"type": "firewall"}},
		{
			what: "firewall, dual stack", rounds: 15, bar: barFirewall,
			before: bridgeOn("10.243.0.0/16", "fd00:243::/64"), plugin: map[string]any{"type": "firewall"},
		},
		{what: "bandwidth, both ways", rounds: 20, bar: barBandwidth, before: bridge, plugin: map[string]any{
			"type": "bandwidth", "ingressRate": 8_000_000, "ingressBurst": 800_000,
			"egressRate": 16_000_000, "egressBurst": 1_600_000,
		}},
	}
}

// subLinks are trials of the plugins whose links have a parent. A kernel may lack some of these
// kinds.
func subLinks() (all []trial) {
	for _, kind := range []struct {
		name string
		rtnl.Kind
	}{{"macvlan", rtnl.Macvlan{}}, {"ipvlan", rtnl.Ipvlan{}}, {"vlan", rtnl.Vlan{ID: 5}}} {
		conf := map[string]any{"type": kind.name, "master": master, "ipam": addresses("10.243.0.0/16")}
		if kind.name == "vlan" {
			conf["vlanId"] = 5
		}
		all = append(all, trial{what: kind.name, rounds: 20, bar: barSubLink, kind: kind.Kind, plugin: conf})
	}
	return all
}

// addresses configures host-local with a range set for each subnet.
func addresses(subnets ...string) map[string]any {
	var sets [][]map[string]string
	for _, s := range subnets {
		sets = append(sets, []map[string]string{{"subnet": s}})
	}
	return map[string]any{"type": "host-local", "dataDir": "/var/lib/cni/networks", "ranges": sets}
}

// measureTrials measures each trial on hosts of its own.
func (l *lab) measureTrials(trials []trial) (lines []line) {
	for _, t := range trials {
		r, err := l.measureTrial(t)
		if errors.Is(err, unix.EOPNOTSUPP) {
			lines = append(lines, line{
				What: t.what + ", ADD", Unit: "ms", Bar: t.bar,
				Note: "this kernel has none; `make bench-vm` measures it on one that has",
			})
			continue
		}
		if err != nil {
			lines = append(lines, line{What: t.what, Unit: "ms", Error: err.Error()})
			continue
		}
		lines = append(lines,
			better(t.what+", ADD", r.of("ADD", "ours"), r.of("ADD", "reference"), t.bar),
			better(t.what+", DEL", r.of("DEL", "ours"), r.of("DEL", "reference"), 0))
		if t.before != nil {
			lines = append(lines, better("with bridge, by cni-exec", r.of("ADD", "cni-exec"), r.of("all", "reference"), 0))
		}
	}
	return lines
}

// measureTrial measures ours and the reference in turns. The error wraps unix.EOPNOTSUPP if the kernel
// does not support the link's kind.
func (l *lab) measureTrial(t trial) (results, error) {
	if err := l.probeKind(t.kind); err != nil {
		return nil, err
	}
	var subjects []subject
	for _, who := range []string{"ours", "reference"} {
		dir := map[string]string{"ours": l.ours, "reference": l.reference}[who]
		if dir == "" {
			continue
		}
		s, err := l.trialSubjects(who, dir, t)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
		subjects = append(subjects, s...)
	}
	return l.interleave(l.rounds(t.rounds), subjects...), nil
}

// trialSubjects makes a host and its subjects. Each round also attaches and detaches the container by the
// plugin before it: the packaged bandwidth leaves qdiscs that are deleted only with the link. With
// more than one plugin there is a subject for cni-exec, too.
func (l *lab) trialSubjects(who, dir string, t trial) ([]subject, error) {
	name := strings.NewReplacer(", ", "-", " ", "-").Replace(t.what) + "-" + who
	list := []map[string]any{t.plugin}
	if t.before != nil {
		list = []map[string]any{t.before, t.plugin}
	}
	n, err := l.networkOf(name, dir, list)
	if err != nil {
		return nil, err
	}
	if err := addMaster(n.host.NS); err != nil {
		return nil, err
	}
	a, err := newAttachment(name, 19999)
	if err != nil {
		return nil, err
	}
	r := n.byExec()
	round := func() ([]cost, error) { return n.lastOf(r, a) }
	subjects := []subject{{name: who, steps: []string{"ADD", "DEL", "all"}, round: round}}
	if len(list) > 1 && who == "ours" {
		subjects = append(subjects, n.life("cni-exec", &byCniExec{network: n}, a))
	}
	return subjects, nil
}

// lastOf attaches and detaches a container. It returns the times of the last plugin's ADD and DEL,
// and of all ADDs.
func (n *network) lastOf(r *byExec, a attachment) (took []cost, err error) {
	settle()
	err = n.host.Do(func() error {
		held, err := r.attach(a, n.list)
		if err != nil {
			return err
		}
		del, err := r.detach(a, held)
		took = []cost{held.last, del, held.all}
		return err
	})
	return took, err
}

// An attached container has the result of each plugin of a list.
type attached struct {
	list      []map[string]any
	result    json.RawMessage
	last, all cost // of the last plugin's ADD, and of those of all
}

// attach calls ADD of each plugin of a list, in the namespace of the thread.
func (r *byExec) attach(a attachment, list []map[string]any) (held attached, err error) {
	held.list = list
	first := begin()
	for _, p := range list {
		w := begin()
		if held.result, err = r.plugin("ADD", a, p, held.result); err != nil {
			return held, fmt.Errorf("ADD: %w", err)
		}
		held.last = w.took()
	}
	held.all = first.took()
	return held, nil
}

// detach calls DEL of each plugin in reverse order, and returns the time of the last plugin's.
func (r *byExec) detach(a attachment, held attached) (last cost, err error) {
	for i, p := range slices.Backward(held.list) {
		w := begin()
		if _, err := r.plugin("DEL", a, p, held.result); err != nil {
			return last, fmt.Errorf("DEL: %w", err)
		}
		if i == len(held.list)-1 {
			last = w.took()
		}
	}
	return last, nil
}

// addMaster makes a veth pair with one end named [master], both ends up.
func addMaster(ns *netns.NS) error {
	c, err := rtnl.Dial(ns)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.AddLink(rtnl.LinkSpec{Name: master, Up: true, Peer: &rtnl.LinkSpec{Name: "p0"}}); err != nil {
		return err
	}
	return setUp(ns, "p0")
}

// probeKind reports whether the kernel supports the kind, by making such a link in a temporary
// namespace.
func (l *lab) probeKind(kind rtnl.Kind) error {
	if kind == nil {
		return nil
	}
	ns, err := netns.New()
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := addMaster(ns); err != nil {
		return err
	}
	c, err := rtnl.Dial(ns)
	if err != nil {
		return err
	}
	defer c.Close()
	m, err := c.Link(master)
	if err != nil {
		return err
	}
	return c.AddLink(rtnl.LinkSpec{Name: "try0", Kind: kind, Parent: m.Index})
}
