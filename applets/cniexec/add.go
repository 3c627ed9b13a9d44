package cniexec

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/cnibox/cnibox/applets/cniexec/dryrun"
	"github.com/cnibox/cnibox/applets/cniexec/sandbox"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/interrupt"
	"github.com/cnibox/cnibox/spec"
)

func addVerb() *verb {
	return &verb{name: "add", group: "Attach", operands: "NETWORK NETNS", summary: "attach a namespace to a network", new: func(c *call) action { return &addCall{call: c} },
		text: `The plugins of the network run in their order, and the result of the last one is
printed. A failed add is taken back: nothing stays. NETNS is a path, or the name
of a namespace in /run/netns.`,
		examples: []example{
			{"cni-exec add --create mynet blue", "eth0 of the namespace blue, which is made"},
			{"cni-exec add -i net1 -p 8080:80 mynet /proc/4711/ns/net", "a second interface, with a port"},
		},
	}
}

// An addCall is one call of add.
type addCall struct {
	*call
	link
	asked
	create bool // the named namespace
	dryRun bool
}

func (c *addCall) flags(f *flagSet) {
	c.link.declare(f, "`NAME` interface in the namespace", "`ID` container ID; default: made of NETNS as by cnitool")
	c.asked.declare(f, "`ADDR` ask for this IP address; repeatable", "`ADDR` MAC address of the interface")
	f.BoolVar(&c.create, "create", false, "make the named namespace if it is missing, with lo up")
	f.BoolVar(&c.dryRun, "dry-run", false, "only print what would be made")
	f.outputs("`json` print what --dry-run finds, and an error, as JSON")
}

func (c *addCall) do(ctx context.Context, operands []string) (int, error) {
	err := c.networkOperands(operands, 2)
	switch {
	case err != nil:
	case c.create && !sandbox.IsNamed(c.target.NetNS):
		err = fmt.Errorf("--create needs the NAME of a network namespace, for %s/NAME", sandbox.NetNSDir)
	case c.target.NetNS == "":
		err = errors.New("NETNS is missing: the name of a network namespace, or a path as /run/netns/NAME")
	}
	if err != nil {
		return 0, usage("add: %w", err)
	}
	interrupt.Expect()
	if err := c.prepare(); err != nil {
		return 0, err
	}
	c.link.setTarget(&c.target)
	c.runner.Retries = c.retries
	if c.target.Capabilities, err = c.asked.capabilities(c.target.Capabilities); err != nil {
		return 0, err
	}
	return exitOK, c.add(ctx)
}

// add runs ADD and prints its result. If the result cannot be written, it deletes the attachment
// again: for the caller the call has failed, and it may retry.
func (c *addCall) add(ctx context.Context) error {
	l, err := c.load(c.target)
	if err == nil {
		err = cmp.Or(c.canHonour(c.call, l), c.CheckLimits())
	}
	if err != nil {
		return err
	}
	c.warnOf(l, c.dryRun || !c.runner.Cache.Used(l.Name))
	c.target.Args, c.target.Capabilities = c.arguments(&c.target.RuntimeConf, []*chain.List{l}, 0)
	if c.dryRun {
		return c.try(ctx, l)
	}
	defer interrupt.Begin()()
	created := false
	if c.create {
		if created, _, err = c.createNetNS(ctx, c.target.NetNS, func() ([]*chain.Entry, error) { return c.entriesOf(c.target.ContainerID) }); err != nil {
			return err
		}
	}
	if err = c.addTo(ctx, l); err != nil && created {
		ctx, cancel := interrupt.UndoContext(ctx, sandbox.TakeDown)
		defer cancel()
		if _, derr := c.deleteUnused(ctx, c.target.NetNS); derr != nil {
			c.runner.Warn("%v", derr)
		}
	}
	return err
}

// try prints what add would make.
func (c *addCall) try(ctx context.Context, l *chain.List) error {
	r := dryrun.Run{Process: c.Process, Network: sandbox.Network{List: l, RuntimeConf: c.target.RuntimeConf}, Runner: c.runner, Stored: c.describer(), Create: c.create}
	changes, err := r.Add(ctx)
	switch {
	case err != nil:
	case c.output == outputJSON:
		_, err = c.writeJSON(changes)
	default:
		_, err = c.write(changes.Text())
	}
	return err
}

// addTo attaches the target, whose namespace exists.
func (c *addCall) addTo(ctx context.Context, l *chain.List) error {
	res, err := c.runner.Add(ctx, l, c.target.RuntimeConf)
	if err != nil {
		return err
	}
	ignoreClosedPipe()
	if err := c.writeResult(res.Doc); err != nil {
		return c.takeBack(ctx, l, spec.Errorf(spec.CodeIO, "write the result: %w", err))
	}
	return nil
}

// takeBack deletes the attachment of add, since its result could not be printed, and returns the
// cause.
func (c *addCall) takeBack(ctx context.Context, l *chain.List, cause *spec.Error) error {
	ctx, cancel := interrupt.UndoContext(ctx, sandbox.TakeDown)
	defer cancel()
	c.runner.KeepGoing = true
	cause.Details = "the attachment is deleted again"
	if err := c.runner.Del(ctx, l, c.target.RuntimeConf); err != nil {
		cause.Details = "cleanup is not complete, run DEL again: " + err.Error()
	}
	return cause
}
