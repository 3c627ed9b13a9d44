package main

import (
	"fmt"
	"strings"
	"time"

	"cnibox/rtnl"
	"cnibox/test/sandbox"
)

// collected is how many attachments one GC ends, and mostGC the seconds that it may take.
const (
	collected = 1000
	mostGC    = 3
)

// collect has cni-exec end all attachments of a network at once. The host of the
// group before has half of them already. The reference has no GC.
func collect(l *lab) []line {
	count := l.crowd(collected)
	gc := line{What: fmt.Sprintf("GC of %d, of the limit", count), Unit: "s", Other: figure{Median: mostGC}, Bar: 1, Most: true}
	took, err := l.collectAll(count)
	gc.Ours.Median = took.Seconds()
	gc.Ratio = ratio(gc.Ours.Median, mostGC)
	gc.fail(err)
	return []line{gc}
}

// collectAll fills a host, collects, and looks that nothing is left.
func (l *lab) collectAll(count int) (took time.Duration, err error) {
	n := l.full
	if n == nil {
		if n, err = l.newNetwork("gc", l.ours); err != nil {
			return 0, err
		}
	}
	if err := n.fill(&byCniExec{network: n}, count); err != nil {
		return 0, err
	}
	settle()
	err = n.host.Do(func() (err error) {
		_, took, err = sandbox.Call{
			Argv: []string{l.ours + "/cni-exec", "gc", "--all", n.name},
			Env:  []string{"NETCONFPATH=" + n.confDir, "CNI_PATH=" + n.plugins},
		}.Run()
		return err
	})
	if err != nil {
		return took, err
	}
	n.filled = 0
	return took, n.bare()
}

// bare is an error if a container's link is left on the host.
func (n *network) bare() error {
	c, err := rtnl.Dial(n.host.NS)
	if err != nil {
		return err
	}
	defer c.Close()
	links, err := c.Links()
	if err != nil {
		return err
	}
	var left []string
	for _, k := range links {
		if k.Kind == "veth" {
			left = append(left, k.Name)
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("%d links are left, %s", len(left), strings.Join(left[:min(3, len(left))], " "))
	}
	return nil
}
