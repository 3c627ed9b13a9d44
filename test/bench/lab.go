package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"cnibox/test/sandbox"
)

// A lab is what all groups work with.
type lab struct {
	bin       string // the binary
	ours      string // folder with a link for each applet
	base      string // folder with a link for each applet of an earlier revision; "": none
	baseBin   string // its binary
	reference string // folder with the reference plugins; "": not installed
	tools     string // folder with bare and peak
	dir       string // for what groups write; gone with the sandbox
	quick     bool
	most      int      // rounds; 0: no limit
	hosts     int      // made so far
	full      *network // of ours, with many containers that stay; nil before there is one
}

// newLab installs the binary. A folder without the reference's bridge counts as none.
func newLab(o options) (*lab, error) {
	bin, err := filepath.Abs(o.bin)
	if err != nil {
		return nil, err
	}
	l := &lab{bin: bin, ours: "/run/bench/bin", tools: o.tools, dir: "/run/bench", quick: o.quick, most: o.rounds}
	install := exec.Cmd{Path: bin, Args: []string{"cnibox", "install", "--create", l.ours}, Stderr: os.Stderr}
	if err := install.Run(); err != nil {
		return nil, fmt.Errorf("%s install: %w", bin, err)
	}
	if _, err := os.Stat(filepath.Join(o.reference, "bridge")); err == nil {
		l.reference = o.reference
	}
	if o.base != "" {
		if err := l.installBase(o.base); err != nil {
			return nil, err
		}
	}
	return l, l.linkIptables()
}

// linkIptables makes the folder [iptablesOnly]; it is empty without iptables.
func (l *lab) linkIptables() error {
	if err := os.MkdirAll(iptablesOnly, 0o755); err != nil {
		return err
	}
	program, err := exec.LookPath("iptables")
	if err != nil {
		return nil // the reference will say that it needs it
	}
	return os.Symlink(program, filepath.Join(iptablesOnly, "iptables"))
}

// rounds returns n, or as few as show that all works.
func (l *lab) rounds(n int) int {
	if l.quick {
		n = min(n, 3)
	}
	if l.most > 0 {
		n = min(n, l.most)
	}
	return n
}

// crowd returns how many containers n stands for.
func (l *lab) crowd(n int) int {
	if l.quick {
		return n / 5
	}
	return n
}

// A group is a part of the table.
type group struct {
	name  string // for -only
	title string
	run   func(*lab) []line
}

// groups in the order in which they run: the last ones leave hundreds of
// namespaces behind, whose end would disturb any that came after.
var groups = []group{
	{"base", "Against the earlier revision", against},
	{"size", "Size of the plugins on disk", size},
	{"start", "Start and end of a process: what VERSION costs", startCost},
	{"memory", "Peak memory of one call (ADD, CHECK, DEL: the most)", memory},
	{"chain", "Chain of bridge(isGateway, ipMasq, host-local), portmap, tuning", chain},
	{"plugins", "One plugin alone", func(l *lab) []line { return l.try(trials()) }},
	{"links", "Links on another link", func(l *lab) []line { return l.try(subLinks()) }},
	{"dhcp", "Memory of the DHCP daemon", daemons},
	{"leases", "host-local alone, by the number of leases", leases},
	{"parallel", "100 containers (20 if quick), 16 at a time", parallel},
	{"scale", "The 500th container (the 100th if quick)", scale},
	{"crowd", "cni-exec about 1,000 attachments at once (200 if quick)", crowded},
}

// groupNames lists what -only takes.
func groupNames() string {
	var names []string
	for _, g := range groups {
		names = append(names, g.name)
	}
	return strings.Join(names, ", ")
}

// newHost makes a namespace that stands for a host.
func (l *lab) newHost() (*sandbox.NetNS, error) {
	l.hosts++
	return sandbox.NewNetNS(fmt.Sprintf("host%d", l.hosts))
}
