package cniexec

import (
	"context"
	"errors"
	"os"
	"strings"

	"github.com/cnibox/cnibox/applets/cniexec/inventory"
	"github.com/cnibox/cnibox/applets/cniexec/sandbox"
	"github.com/cnibox/cnibox/internal/program"
)

func enterVerb() *verb {
	return &verb{name: "enter", group: "Run", operands: "ID|NETNS -- COMMAND [ARGUMENT]…", command: true, before: 1, new: func(c *call) action { return &enterCall{call: c} },
		summary: "run a command in the namespace of a container",
		text: `This process becomes the command, which has the /sys of the namespace, and the
/etc/resolv.conf of the networks that it is attached to. The "--" may be left
out.`,
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
		return 0, usage(`enter: ID is missing: a container, or the name or the path of a network namespace, before "--"`)
	case len(operands) > 1:
		return 0, c.tooMany(operands, 1)
	case len(c.command) == 0:
		return 0, usage("enter: the command is missing: cni-exec enter %s -- COMMAND", operands[0])
	}
	if err := c.prepare(); err != nil {
		return 0, err
	}
	path, err := c.namespaceOf(operands[0])
	if err != nil {
		return 0, err
	}
	command := program.Command{Args: c.command, Environ: c.Environ}
	return c.names().Enter(ctx, path, &command, func() {
		c.target.NetNS = path
		c.logSubject()
		c.Log.Write(exitOK)
	})
}

// namespaceOf returns the path of a namespace, by its own name or path, or by its container as show
// names it.
func (c *call) namespaceOf(name string) (string, error) {
	path, invalid := sandbox.NetNSPath(name)
	if _, err := os.Lstat(path); invalid == nil && err == nil {
		return path, nil
	}
	entries, _, err := c.runner.Entries()
	found, ferr := inventory.Of(c.runner.Cache, c.describer(), entries).Find(name)
	var several *inventory.SeveralError
	switch {
	case err == nil && ferr == nil:
		return found[0].NetNSPath(), nil
	case errors.As(ferr, &several):
		return "", ferr
	case invalid != nil:
		return "", usage("enter: %w", invalid)
	case err == nil && !strings.Contains(name, "/"):
		return "", noPlace(name)
	}
	return path, nil // the error is that of opening it
}
