package main

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/test/sandbox"
)

// Numbers of attachments for the verbs of cni-exec that work on all of them.
const (
	crowdFew  = 50
	crowdHalf = 500
	crowdAll  = 1000
)

// Limits of these verbs in milliseconds, and of the GC of all in seconds.
const (
	mostLsFew  = 50
	mostLsAll  = 150
	mostWho    = 30
	mostRules  = 300
	mostBridge = 2000
	mostGC     = 0.6
)

// unknownMAC belongs to no attachment.
const unknownMAC = "02:00:00:00:00:07"

// crowded measures the verbs of cni-exec that work on many attachments at once: showing them,
// restoring their state on the host, and deleting all. The reference has no such verbs.
func crowded(l *lab) (lines []line) {
	alive := line{What: fmt.Sprintf("gc of %d that are alive, of the limit", l.crowd(crowdAll)), Unit: "s", Other: figure{Median: mostGC}, Bar: 1, Most: true}
	dead := alive
	dead.What = fmt.Sprintf("gc of %d whose namespace is gone, of the limit", l.crowd(crowdAll))
	c, err := l.newCrowd()
	if err != nil {
		dead.fail(err)
		return []line{dead}
	}
	measure := func(what string, limit float64, before func() error, args ...string) {
		s := c.subject(before, args...)
		took := l.interleave(l.rounds(10), s).of(s.steps[0], s.name)
		lines = append(lines, within(fmt.Sprintf("%s, %d attachments", what, c.filled), took, figure{Median: limit}, 1))
	}
	c.grow(l.crowd(crowdFew))
	measure("ls", mostLsFew, nil, "ls")
	c.grow(l.crowd(crowdHalf))
	measure("reload, no rules", mostRules, c.dropRules, "reload")
	measure("reload, no bridge", mostBridge, c.dropBridge, "reload")
	c.grow(l.crowd(crowdAll))
	measure("ls", mostLsAll, nil, "ls")
	for _, w := range [][2]string{
		{"an address", "10.240.0.7"}, {"a port", "tcp/20007"}, {"a link", c.link}, {"a bridge", "bench0"}, {"an unknown MAC", unknownMAC},
	} {
		measure("show, "+w[0], mostWho, nil, "show", w[1])
	}
	measureGC := func(row *line, gc func() (time.Duration, error)) {
		took, err := gc()
		row.Ours.Median = took.Seconds()
		row.Ratio = ratio(row.Ours.Median, mostGC)
		row.fail(errors.Join(c.err, err))
		lines = append(lines, *row)
	}
	measureGC(&alive, c.collect)
	c.attachAgain()
	measureGC(&dead, c.collectDead)
	return lines
}

// A crowd is a host with many attachments.
type crowd struct {
	*network
	link string // host-side veth of one of them
	err  error  // of steps between the measurements
}

// newCrowd makes a host without attachments.
func (l *lab) newCrowd() (*crowd, error) {
	n, err := l.newNetwork("crowd", l.ours)
	return &crowd{network: n}, err
}

// grow attaches count more containers.
func (c *crowd) grow(count int) {
	if c.err == nil {
		c.err = c.fill(&byCniExec{network: c.network}, count)
	}
	veths, err := c.veths()
	c.err = errors.Join(c.err, err)
	if len(veths) > 0 {
		c.link = veths[0]
	}
}

func (c *crowd) attachAgain() {
	if c.err == nil {
		_, errs := c.all(&byCniExec{network: c.network}, "ADD", c.held, 2)
		c.err = errors.Join(errs...)
	}
}

// collectDead deletes all attachments after their namespaces, and with them their links, are gone.
func (c *crowd) collectDead() (time.Duration, error) {
	for _, a := range c.held {
		if err := a.netns.Remove(); err != nil {
			return 0, err
		}
	}
	if err := awaitCleanup(); err != nil {
		return 0, err
	}
	return c.gc()
}

// collect deletes all attachments; their namespaces still exist.
func (c *crowd) collect() (time.Duration, error) { return c.gc("--all") }

// gc runs cni-exec gc and checks that no host-side veth is left.
func (c *crowd) gc(flags ...string) (time.Duration, error) {
	took, err := c.subject(nil, append(append([]string{"gc"}, flags...), c.name)...).round()
	if err != nil {
		return 0, err
	}
	left, err := c.veths()
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("%d links are left, %s", len(left), strings.Join(left[:min(3, len(left))], " "))
	}
	return took[0].wall, err
}

// subject makes a subject of a call of cni-exec on the host. The time of before is not counted. A
// search for unknownMAC finds nothing and exits with 1.
func (c *crowd) subject(before func() error, args ...string) subject {
	call := sandbox.Call{
		Argv: append([]string{filepath.Join(c.plugins, "cni-exec")}, args...),
		Env:  []string{"NETCONFPATH=" + c.confDir, "CNI_PATH=" + c.plugins},
	}
	return subject{name: c.name, steps: args[:1], round: func() (took []cost, err error) {
		if before != nil {
			err = before()
		}
		if err = errors.Join(c.err, err); err != nil {
			return nil, err
		}
		settle()
		err = c.host.Do(func() error {
			w := begin()
			_, _, err := call.Run()
			took = []cost{w.took()}
			if exit := (*exec.ExitError)(nil); slices.Contains(args, unknownMAC) && errors.As(err, &exit) && exit.ExitCode() == 1 {
				return nil
			}
			return err
		})
		return took, err
	}}
}

// dropRules deletes the host's rule set.
func (c *crowd) dropRules() error {
	return c.host.Do(func() error {
		_, _, err := sandbox.Call{Argv: []string{"nft", "flush", "ruleset"}}.Run()
		return err
	})
}

// dropBridge deletes the host's bridge.
func (c *crowd) dropBridge() error {
	conn, err := rtnl.Dial(c.host.NS)
	if err != nil {
		return err
	}
	defer conn.Close()
	return errors.Join(c.dropRules(), conn.DelLink("bench0"))
}

// veths returns the names of the host-side veths.
func (n *network) veths() (names []string, err error) {
	c, err := rtnl.Dial(n.host.NS)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	links, err := c.Links()
	for _, k := range links {
		if k.Kind == "veth" {
			names = append(names, k.Name)
		}
	}
	return names, err
}
