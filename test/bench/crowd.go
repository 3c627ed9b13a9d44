package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"cnibox/rtnl"
	"cnibox/test/sandbox"
)

// How many attachments there are when verbs of cni-exec are measured that are about all of them.
const (
	crowdFew  = 50
	crowdHalf = 500
	crowdAll  = 1000
)

// The most that these may take, in milliseconds, and the GC of all in seconds.
const (
	mostLsFew  = 50
	mostLsAll  = 150
	mostWho    = 30
	mostRules  = 300
	mostBridge = 2000
	mostGC     = 3
)

// unknownMAC is that of no attachment.
const unknownMAC = "02:00:00:00:00:07"

// crowded measures what cni-exec does about many attachments at once: shows them, restores what
// they have on the host, and ends them all. The reference has no such verbs.
func crowded(l *lab) (lines []line) {
	gc := line{What: fmt.Sprintf("gc --all of %d, of the limit", l.crowd(crowdAll)), Unit: "s", Other: figure{Median: mostGC}, Bar: 1, Most: true}
	c, err := l.newCrowd()
	if err != nil {
		gc.fail(err)
		return []line{gc}
	}
	measure := func(what string, limit float64, before func() error, args ...string) {
		took := c.measure(l.rounds(10), before, args...)
		at := within(fmt.Sprintf("%s, %d attachments", what, c.filled), took, figure{Median: limit}, 1)
		lines = append(lines, at)
	}
	c.grow(l.crowd(crowdFew))
	measure("ls", mostLsFew, nil, "ls")
	c.grow(l.crowd(crowdHalf))
	measure("reload, no rules", mostRules, c.dropRules, "reload")
	measure("reload, no bridge", mostBridge, c.dropBridge, "reload")
	c.grow(l.crowd(crowdAll))
	measure("ls", mostLsAll, nil, "ls")
	for _, w := range [][2]string{
		{"an address", c.address}, {"a port", "tcp/20007"}, {"a link", c.link}, {"a bridge", "bench0"}, {"an unknown MAC", unknownMAC},
	} {
		measure("who, "+w[0], mostWho, nil, "who", w[1])
	}
	took := c.measure(1, nil, "gc", "--all", c.name)
	gc.Ours.Median = took.median().Seconds()
	gc.Ratio = ratio(gc.Ours.Median, mostGC)
	gc.fail(errors.Join(c.err, took.err, c.bare()))
	return append(lines, gc)
}

// A crowd is a host with many attachments.
type crowd struct {
	*network
	address, link string // of one of them
	err           error  // of what was done between the measurements
}

// newCrowd makes a host that has none yet. What the group before has left is in the cache, and goes.
func (l *lab) newCrowd() (*crowd, error) {
	if l.full != nil {
		if took := (&crowd{network: l.full}).measure(1, nil, "gc", "--all", l.full.name); took.err != nil {
			return nil, took.err
		}
		l.full = nil
	}
	n, err := l.newNetwork("crowd", l.ours)
	return &crowd{network: n}, err
}

// grow attaches more.
func (c *crowd) grow(count int) {
	if c.err == nil {
		c.err = c.fill(&byCniExec{network: c.network}, count)
	}
	if c.err == nil {
		c.err = c.choose()
	}
}

// choose picks the attachment that is asked about.
func (c *crowd) choose() error {
	conn, err := rtnl.Dial(c.host.NS)
	if err != nil {
		return err
	}
	defer conn.Close()
	links, err := conn.Links()
	for _, k := range links {
		if k.Kind == "veth" {
			c.link = k.Name
		}
	}
	c.address = "10.240.0.7"
	return err
}

// measure calls cni-exec on the host some times, after before, whose time does not count. A
// "who" that finds nothing ends with 1.
func (c *crowd) measure(rounds int, before func() error, args ...string) (s series) {
	for range rounds {
		if c.err == nil && before != nil {
			c.err = before()
		}
		if c.err != nil {
			return series{err: c.err}
		}
		settle()
		s.err = c.host.Do(func() error {
			_, took, err := sandbox.Call{
				Argv: append([]string{filepath.Join(c.plugins, "cni-exec")}, args...),
				Env:  []string{"NETCONFPATH=" + c.confDir, "CNI_PATH=" + c.plugins},
			}.Run()
			s.took = append(s.took, took)
			if args[0] == "who" && args[1] == unknownMAC {
				return nil
			}
			return err
		})
		if s.err != nil {
			return s
		}
	}
	return s
}

// dropRules deletes the rule set of the host.
func (c *crowd) dropRules() error {
	return c.host.Do(func() error {
		_, _, err := sandbox.Call{Argv: []string{"nft", "flush", "ruleset"}}.Run()
		return err
	})
}

// dropBridge deletes the bridge as well.
func (c *crowd) dropBridge() error {
	conn, err := rtnl.Dial(c.host.NS)
	if err != nil {
		return err
	}
	defer conn.Close()
	return errors.Join(c.dropRules(), conn.DelLink("bench0"))
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
