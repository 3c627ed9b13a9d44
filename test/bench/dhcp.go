package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/test/sandbox"
)

// held is how many leases the daemons hold when their memory is measured.
const held = 500

// daemons measures the memory of both DHCP daemons with many leases, each on its own host, and the
// plugin's time with those leases against its time with none.
func daemons(l *lab) []line {
	count := l.crowd(held)
	memory := line{What: fmt.Sprintf("daemon at %d leases", count), Unit: "MiB"}
	ours, err := l.measureDaemon("dhcp-ours", l.ours, count)
	memory.fail(err)
	var theirs daemonUse
	if err == nil && l.reference != "" {
		if theirs, err = l.measureDaemon("dhcp-reference", l.reference, count); err != nil {
			memory.Note = "reference: " + err.Error()
		}
	}
	if memory.Note == "" {
		memory.Note = fmt.Sprintf("threads: %d, reference %d", ours.threads, theirs.threads)
	}
	memory.Ours.Median, memory.Other.Median = float64(ours.kib)/1024, float64(theirs.kib)/1024
	memory.Ratio = ratio(memory.Other.Median, memory.Ours.Median)
	lines := []line{memory}
	for _, verb := range []string{"ADD", "DEL"} {
		row := within("dhcp, "+verb+" to none held", ours.full.of(verb, "dhcp"), ours.empty.of(verb, "dhcp").milliseconds(), barScale)
		row.fail(err)
		lines = append(lines, row)
	}
	return lines
}

// A daemonUse is a daemon's memory and threads, and the time of its plugin before and after the
// leases are taken.
type daemonUse struct {
	kib, threads int // resident; of all its threads
	empty, full  results
}

// measureDaemon gets leases for count containers behind one bridge.
func (l *lab) measureDaemon(name, plugins string, count int) (use daemonUse, err error) {
	n, err := l.networkOf(name, plugins, nil)
	if err != nil {
		return use, err
	}
	dir := filepath.Join(l.dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return use, err
	}
	all, err := n.behindBridge(count + 1)
	if err != nil {
		return use, err
	}
	server, err := n.serveDHCP()
	if err != nil {
		return use, err
	}
	defer server.Close()
	socket := filepath.Join(dir, "dhcp.sock")
	daemon := exec.Command(filepath.Join(plugins, "dhcp"), "daemon", "-socketpath", socket)
	daemon.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	if err := n.host.Do(daemon.Start); err != nil {
		return use, err
	}
	defer func() {
		daemon.Process.Kill()
		daemon.Wait()
	}()
	for range 100 {
		if _, err = os.Stat(socket); err == nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err != nil {
		return use, err
	}
	client := &byDHCP{n, socket}
	one := client.subject(all[count])
	empty := l.interleave(l.rounds(10), one)
	if _, errs := n.all(client, "ADD", all[:count], 8); len(errs) > 0 {
		return use, fmt.Errorf("%d of %d leases failed: %w", len(errs), count, errs[0])
	}
	if use, err = usage(daemon.Process.Pid); err == nil {
		use.empty, use.full = empty, l.interleave(l.rounds(10), one)
	}
	return use, err
}

// subject gets one lease and releases it.
func (r *byDHCP) subject(a attachment) subject {
	verbs := []string{"ADD", "DEL"}
	return subject{name: "dhcp", steps: verbs, round: func() (took []cost, err error) {
		for _, verb := range verbs {
			c, err := r.timed(r, verb, a)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", verb, err)
			}
			took = append(took, c)
		}
		return took, nil
	}}
}

// behindBridge makes containers, each with eth0 on a bridge of the host. It sets the links up
// first: a port takes a while to forward, and clients retransmit only after seconds.
func (n *network) behindBridge(count int) ([]attachment, error) {
	c, err := rtnl.Dial(n.host.NS)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	bridge, err := c.CreateLink(rtnl.LinkSpec{Name: "bench0", Kind: rtnl.Bridge{}, Up: true})
	if err != nil {
		return nil, err
	}
	if err := c.AddAddr(bridge.Index, rtnl.Addr{Prefix: netip.MustParsePrefix("10.243.0.1/16")}); err != nil {
		return nil, err
	}
	all, err := newAttachments(n.name, 0, count)
	for i, a := range all {
		if err == nil {
			err = c.AddLink(rtnl.LinkSpec{
				Name: fmt.Sprint("port", i), Master: bridge.Index, Up: true, Peer: &rtnl.LinkSpec{Name: "eth0", NS: a.netns.NS},
			})
		}
		if err == nil {
			err = setUp(a.netns.NS, "eth0")
		}
	}
	return all, err
}

func setUp(ns *netns.NS, name string) error {
	c, err := rtnl.Dial(ns)
	if err != nil {
		return err
	}
	defer c.Close()
	l, err := c.Link(name)
	if err != nil {
		return err
	}
	return c.SetLink(l.Index, rtnl.LinkChange{Up: new(true)})
}

// usage reads memory and threads from /proc/PID/status.
func usage(pid int) (use daemonUse, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return use, err
	}
	for l := range strings.Lines(string(b)) {
		fmt.Sscanf(l, "VmRSS: %d kB", &use.kib)
		fmt.Sscanf(l, "Threads: %d", &use.threads)
	}
	if use.kib == 0 {
		err = errors.New("the daemon has ended")
	}
	return use, err
}

// byDHCP calls the plugin dhcp for a link that exists already.
type byDHCP struct {
	*network
	socket string
}

// call passes no prevResult.
func (r *byDHCP) call(verb string, a attachment) error {
	stdin, err := json.Marshal(map[string]any{
		"cniVersion": version, "name": r.name, "type": "bridge",
		"ipam": map[string]string{"type": "dhcp", "daemonSocketPath": r.socket},
	})
	if err != nil {
		return err
	}
	_, _, err = sandbox.Call{
		Argv: []string{filepath.Join(r.plugins, "dhcp")}, Stdin: stdin,
		Env: sandbox.Plugin(verb, a.id, a.netns.Path, "eth0", r.plugins),
	}.Run()
	return err
}
