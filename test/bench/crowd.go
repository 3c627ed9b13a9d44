package main

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

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
	mostGC     = 0.6
)

// unknownMAC is that of no attachment.
const unknownMAC = "02:00:00:00:00:07"

// crowded measures what cni-exec does about many attachments at once: shows them, restores what
// they have on the host, and ends them all. The reference has no such verbs.
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
		measure("who, "+w[0], mostWho, nil, "who", w[1])
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
	link string // of one of them
	err  error  // of what was done between the measurements
}

// newCrowd makes a host that has none yet. What the group before has left is in the cache, and goes.
func (l *lab) newCrowd() (*crowd, error) {
	if l.full != nil {
		if _, err := (&crowd{network: l.full}).collect(); err != nil {
			return nil, err
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
	veths, err := c.veths()
	c.err = errors.Join(c.err, err)
	if len(veths) > 0 {
		c.link = veths[0]
	}
}

// attachAgain attaches all that were attached before.
func (c *crowd) attachAgain() {
	if c.err == nil {
		_, errs := c.all(&byCniExec{network: c.network}, "ADD", c.held, 2)
		c.err = errors.Join(errs...)
	}
}

// collectDead ends all attachments when their namespaces are gone, and with those their links.
func (c *crowd) collectDead() (time.Duration, error) {
	for _, a := range c.held {
		if err := a.netns.Remove(); err != nil {
			return 0, err
		}
	}
	const (
		patience = time.Minute
		cleanup  = 5 * time.Second // in which the kernel frees what is left of the namespaces
	)
	for begin := time.Now(); ; settle() {
		left, err := c.veths()
		if err != nil {
			return 0, err
		}
		if len(left) == 0 {
			break
		}
		if time.Since(begin) > patience {
			return 0, fmt.Errorf("%d links of namespaces that are gone are left after %s", len(left), patience)
		}
	}
	time.Sleep(cleanup)
	return c.gc("--valid-live")
}

// collect ends all attachments, whose namespaces stay.
func (c *crowd) collect() (time.Duration, error) { return c.gc("--valid", "none/eth0") }

// gc runs cni-exec gc, and looks that no link of the attachments is left.
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

// subject makes a subject of a call of cni-exec on the host, after before, whose time does not
// count. One that asks who has the unknown MAC finds nothing, and ends with 1.
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

// veths are the names of the containers' links on the host.
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
