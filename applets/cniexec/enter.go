package cniexec

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"

	"cnibox/chain"
	"cnibox/internal/nsid"
	"cnibox/rtnl"
	"cnibox/spec"
)

// enter replaces this process by a command in a network namespace.
//
// The exit code is the command's; 126 or 127 if it was not started, and 1 if the namespace
// cannot be entered.
func (c *call) enter(ctx context.Context, operands []string) (exit int, err error) {
	switch {
	case len(operands) == 0:
		return 0, usage(`enter: NETNS is missing: the name or the path of a network namespace, before "--"`)
	case len(operands) > 1:
		return 0, usage("enter: %q is one operand too many", operands[1])
	case len(c.command) == 0:
		return 0, usage("enter: the command is missing: cni-exec enter %s -- COMMAND", operands[0])
	}
	path, err := netnsPath(operands[0])
	if err != nil {
		return 0, usage("enter: %w", err)
	}
	if err := c.prepare(); err != nil {
		return 0, err
	}
	ns, err := rtnl.OpenNS(path)
	if err != nil {
		return 0, spec.Errorf(spec.CodeNetNS, "%w", err)
	}
	defer ns.Close()
	around := surroundings{dns: c.dnsOf(ns), warn: c.runner.Warn}
	if name := filepath.Base(path); named(path) {
		if _, err := os.Lstat(c.hostsFile(name)); err == nil { // it is that of a run
			around.name, around.hosts = name, c.hostsFile(name)
		}
	}
	signals := catchSignals()
	err = nsid.OnDiscardedThread(func() (err error) {
		if err := ns.Enter(); err != nil {
			return err
		}
		around.mount()
		c.target.NetNS = path
		c.logSubject()
		c.Log.Write(exitOK)
		cmd := chain.Command{Args: c.command, Environ: c.Environ}
		exit, err = become(ctx, &cmd, signals)
		return &hinted{err, startHint(err)}
	})
	return exit, err
}

// dnsOf returns the DNS of the first network that a namespace is attached to and that has
// some. What cannot be read has none.
func (c *call) dnsOf(ns *rtnl.NS) (dns spec.DNS) {
	entries, _, _ := c.runner.Cache.List()
	for _, e := range entries {
		var result struct{ DNS spec.DNS }
		if !ns.At(e.NetNSPath()) || !e.Live() || json.Unmarshal(e.Result, &result) != nil {
			continue
		}
		if len(result.DNS.Nameservers) > 0 {
			return result.DNS
		}
	}
	return dns
}
