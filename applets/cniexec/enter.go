package cniexec

import (
	"context"

	"cnibox/applets/cniexec/sandbox"
	"cnibox/chain"
)

func enterVerb() *verb {
	return &verb{name: "enter", operands: "NETNS -- COMMAND [ARGUMENT]…", command: true, new: func(c *call) action { return &enterCall{call: c} },
		summary: "run a command in a namespace",
		text: `This process becomes the command, which has the /sys of the namespace, and the
/etc/resolv.conf of the networks that it is attached to.`,
		examples: []example{
			{"cni-exec enter blue -- ip addr", "in /run/netns/blue"},
			{"cni-exec enter /proc/4711/ns/net -- sh", "in the namespace of a process"},
		},
	}
}

// An enterCall is one call of enter.
type enterCall struct {
	*call
}

func (*enterCall) flags(*flagSet) {}

// do replaces this process with a command in a network namespace.
//
// The exit code is the command's; 126 or 127 if it was not started, and 1 if the namespace
// cannot be entered.
func (c *enterCall) do(ctx context.Context, operands []string) (exit int, err error) {
	switch {
	case len(operands) == 0:
		return 0, usage(`enter: NETNS is missing: the name or the path of a network namespace, before "--"`)
	case len(operands) > 1:
		return 0, usage("enter: %q is one operand too many", operands[1])
	case len(c.command) == 0:
		return 0, usage("enter: the command is missing: cni-exec enter %s -- COMMAND", operands[0])
	}
	path, err := sandbox.NetNSPath(operands[0])
	if err != nil {
		return 0, usage("enter: %w", err)
	}
	if err := c.prepare(); err != nil {
		return 0, err
	}
	command := chain.Command{Args: c.command, Environ: c.Environ}
	return c.names().Enter(ctx, path, &command, func() {
		c.runtimeConf.NetNS = path
		c.logSubject()
		c.Log.Write(exitOK)
	})
}
