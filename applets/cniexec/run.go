package cniexec

import (
	"cmp"
	"context"
	"os/signal"
	"strconv"
	"strings"

	"github.com/cnibox/cnibox/applets/cniexec/defaultnet"
	"github.com/cnibox/cnibox/applets/cniexec/hint"
	"github.com/cnibox/cnibox/applets/cniexec/sandbox"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/program"
	"github.com/cnibox/cnibox/spec"
)

func runVerb() *verb {
	return &verb{name: "run", group: "Run", operands: "[--net NETWORK]… -- COMMAND [ARGUMENT]…", command: true, before: 0, new: func(c *call) action { return &runCall{call: c} },
		summary: "run a command in a new, attached namespace",
		text: `All is taken down when the command ends, whose exit code is that of run. Without
--net the network is the only one that is configured, or the default "cnibox".`,
		examples: []example{
			{"cni-exec run -- sh", "a shell in a namespace of its own"},
			{"cni-exec run --net mynet -p 8080:80 -- httpd -f", "a server, reached at the host's port 8080"},
		},
	}
}

// A runCall is one call of run.
type runCall struct {
	*call
	link
	asked
	nets    []string
	inPlace bool
	name    string // empty: none
}

func (c *runCall) flags(f *flagSet) {
	c.link.declare(f, "`NAME` interface on the first network; those on the others count up", "`ID` container ID; default: a random one")
	c.asked.declare(f, "`[NET=]ADDR` ask for this IP address, on the first network or NET", "`[NET=]ADDR` MAC address, on the first network or NET")
	f.names(&c.nets, "net", "`NETWORK` attach to this one; repeatable")
	f.list("dns", "", "`ADDR` name server, in place of the networks'; repeatable", c.addDNS)
	f.BoolVar(&c.inPlace, "exec", false, "replace this process; the next run cleans up")
	f.name(&c.name, "name", "", "`NAME` host name, and name in /run/netns and /etc/hosts of named runs")
}

// do creates a network namespace, attaches it, runs the command in it and detaches it when the
// command ends. The next run deletes what a killed run, or one with --exec, has left.
//
// The exit code is the command's; 1 if it was not started because the network failed. Signals are
// passed to the command. Before it is started they end run, with the exit code of a command that
// the signal ends.
func (c *runCall) do(ctx context.Context, operands []string) (exit int, err error) {
	switch {
	case len(operands) > 0:
		return 0, usage(`run: %q stands before "--": networks are named with --net, the command comes after "--"`, operands[0])
	case len(c.command) == 0:
		return 0, usage("run: the command is missing: cni-exec run -- COMMAND")
	case c.name != "" && c.containerID != "":
		return 0, usage("run: --name and --container-id cannot be combined: the name gives the ID")
	case c.name != "" && c.inPlace:
		return 0, usage("run: --name and --exec cannot be combined: a process has to give the name back")
	}
	if c.name != "" {
		if err := sandbox.CheckRunName(c.name); err != nil {
			return 0, usage("run: --name: %w", err)
		}
		c.containerID = chain.RunPrefix + c.name
	}
	if err := c.prepare(); err != nil {
		return 0, err
	}
	if c.target.Capabilities, err = c.capabilities(c.target.Capabilities); err != nil {
		return 0, err
	}
	if err := cmp.Or(sandbox.Privileged(), c.CheckLimits()); err != nil {
		return 0, err
	}
	c.runner.Retries = c.retries
	c.target.IfName = c.ifName
	c.target.ContainerID = c.containerID
	if c.containerID == "" {
		c.target.ContainerID = chain.RunPrefix + sandbox.RandomHex()
	}
	signals := sandbox.CatchSignals()
	defer signal.Stop(signals)

	r := c.sandbox()
	path := c.Getenv(sandbox.AttachVar)
	if c.inPlace && path == "" {
		return r.InPlace(ctx, signals)
	}
	lists, err := c.lists(c.nets)
	if err == nil {
		err = c.canHonour(c.call, lists...)
	}
	if err != nil {
		return 0, err
	}
	command := program.Command{Args: c.command, Environ: c.Environ}
	if exit, err := command.Look(); err != nil {
		return exit, &hint.Error{Err: err, Hint: hint.Start(err)}
	}
	// only those of run, and only if their namespace is gone
	ours := func(a spec.Attachment) bool { return strings.HasPrefix(a.ContainerID, chain.RunPrefix) }
	if err := c.runner.DeleteStale(ctx, ours); err != nil {
		c.runner.Warn("leftovers of a killed run: %v", err)
	}
	if err := r.DeleteDead(ctx); err != nil {
		c.runner.Warn("names of killed runs: %v", err)
	}
	for i, l := range lists {
		t := c.target.RuntimeConf
		t.IfName = nthName(c.ifName, i)
		t.Args, t.Capabilities = c.arguments(&c.target.RuntimeConf, lists, i)
		r.Networks = append(r.Networks, sandbox.Network{List: l, RuntimeConf: t})
	}
	if c.inPlace {
		return r.AttachOnly(ctx, path, signals)
	}
	return r.Execute(ctx, signals)
}

// sandbox returns the run of the command, without its networks.
func (c *runCall) sandbox() *sandbox.Run {
	return &sandbox.Run{Process: c.Process, Names: c.names(), Command: c.command, Name: c.name, Servers: c.dns, Attaching: func(n sandbox.Network) {
		c.target = target{n.List.Name, n.RuntimeConf}
		c.speak(n.List)
	}}
}

// names returns the named namespaces.
func (c *call) names() sandbox.Names { return sandbox.Names{Runner: c.runner} }

// lists loads the networks of these names; without names the default network, or the only configured
// one. Several configured ones without a name are an error.
func (c *call) lists(names []string) ([]*chain.List, error) {
	if len(names) == 0 {
		configured, _ := chain.Networks(c.confDir)
		switch len(configured) {
		case 0:
			names = []string{defaultnet.Name}
		case 1:
			names = configured
		default:
			return nil, spec.Errorf(spec.CodeConfig, "which network? name it%s: %s", map[string]string{"run": " with --net"}[c.verb], strings.Join(configured, ", "))
		}
	}
	lists := make([]*chain.List, len(names))
	for i, name := range names {
		l, err := c.lookup(name)
		c.speak(l)
		if err != nil {
			return nil, err
		}
		lists[i] = l
	}
	return lists, nil
}

// nthName counts up from the first interface's name: eth0, eth1; net5, net6. A name without a
// number at its end is counted as net, net1.
func nthName(first string, n int) string {
	if n == 0 {
		return first
	}
	base := strings.TrimRight(first, "0123456789")
	from, _ := strconv.Atoi(first[len(base):]) // empty is 0
	return base + strconv.Itoa(from+n)
}
