package sandbox

import (
	"context"
	"os"
	"path/filepath"

	"github.com/cnibox/cnibox/applets/cniexec/hint"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/program"
	"github.com/cnibox/cnibox/spec"
)

// Enter replaces this process with a command in a network namespace. It calls starting right before
// it starts the command.
//
// The exit code is the command's; 126 or 127 if it was not started, and 1 if the namespace
// cannot be entered.
func (n Names) Enter(ctx context.Context, path string, command *program.Command, starting func()) (exit int, err error) {
	ns, err := netns.Open(path)
	if err != nil {
		return 0, spec.Errorf(spec.CodeNetNS, "%w", err)
	}
	defer ns.Close()
	around := commandEnv{dns: n.dnsOf(ns), warn: n.Runner.Warn}
	if name := filepath.Base(path); IsNamed(path) {
		if _, err := os.Lstat(n.hostsFile(name)); err == nil { // the name is that of a run
			around.name, around.hosts = name, n.hostsFile(name)
		}
	}
	signals := CatchSignals()
	err = netns.OnDiscardedThread(func() (err error) {
		if err := ns.Enter(); err != nil {
			return err
		}
		around.mount()
		starting()
		exit, err = become(ctx, command, signals)
		return &hint.Error{Err: err, Hint: hint.Start(err)}
	})
	return exit, err
}

// dnsOf returns the DNS of the first network with DNS to which a namespace is attached. Unreadable
// entries have none.
func (n Names) dnsOf(ns *netns.NS) (dns spec.DNS) {
	entries, _, _ := n.Runner.Cache.List()
	for _, e := range entries {
		if !ns.IsAt(e.NetNSPath()) || !e.Live() {
			continue
		}
		if dns := e.BriefResult().DNS; len(dns.Nameservers) > 0 {
			return dns
		}
	}
	return dns
}
