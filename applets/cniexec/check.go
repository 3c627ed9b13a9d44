package cniexec

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"cnibox/applets/cniexec/doctor"
	"cnibox/applets/cniexec/hint"
	"cnibox/chain"
	"cnibox/internal/memory"
	"cnibox/internal/once"
	"cnibox/spec"
)

func checkVerb() *verb {
	return &verb{name: "check", operands: "NETWORK NETNS | --all", summary: "is it still as add left it?", new: func(c *call) action { return &checkCall{call: c} },
		text: `The exit code says it: 0, or 1 with what is wrong on stderr, and whether reload
restores it or only del and add do.`,
		examples: []example{
			{"cni-exec check mynet /run/netns/blue", "of the interface eth0"},
			{"cni-exec check --all", "every attachment, of other runtimes as well"},
		},
	}
}

// A checkCall is one call of check.
type checkCall struct {
	*call
	link
	all bool
}

func (c *checkCall) flags(f *flagSet) {
	c.link.declare(f, "`NAME` interface in the namespace", "`ID` container ID; default: made of NETNS as by cnitool")
	f.BoolVar(&c.all, "all", false, "every attachment whose namespace exists")
}

func (c *checkCall) do(ctx context.Context, operands []string) (int, error) {
	err := c.allOr(c.all, operands, 2)
	if err == nil && !c.all {
		err = c.link.needs(&c.target)
	}
	if err != nil {
		return 0, usage("check: %w", err)
	}
	if err := c.prepare(); err != nil {
		return 0, err
	}
	if c.all {
		return exitOK, c.checkAll(ctx)
	}
	c.link.aim(&c.target)
	return exitOK, c.check(ctx)
}

// A checkDoc is the document of check.
type checkDoc struct {
	Checked int `json:"checked"`
	foundDoc
}

// check runs CHECK; for people it prints nothing, the exit code is the answer.
func (c *checkCall) check(ctx context.Context) error {
	l, err := c.load()
	if err != nil {
		return err
	}
	if err = c.runner.Check(ctx, l, c.target); err != nil {
		a := spec.Attachment{Network: c.network, ContainerID: c.target.ContainerID, IfName: c.target.IfName}
		c.findings = append(c.findings, doctor.Fault(a, cmp.Or(c.target.NetNS, c.netnsOf(a)), err))
	}
	return c.report(ctx, checkDoc{1, c.found()}, err)
}

// checkAll runs CHECK of every attachment whose namespace exists. The others are gc's, and a
// version of the specification before 0.4.0 has no CHECK. Those come last whose container another
// verb has locked, which may hang.
func (c *checkCall) checkAll(ctx context.Context) error {
	defer memory.CollectLess()()
	ctx, forget := once.Remember(ctx) // one socket of the host, and each configuration decoded once
	defer forget()
	entries, unread := c.runner.Entries()
	running := c.runner.Cache.Running()
	var idle, busy []*chain.Entry
	for _, e := range entries {
		if running(e.ContainerID) {
			busy = append(busy, e)
		} else {
			idle = append(idle, e)
		}
	}
	failed, lost, checked := 0, 0, 0
	for _, e := range append(idle, busy...) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !e.Attached() {
			continue
		}
		unchecked, err := doctor.Judge(ctx, c.runner, e)
		if unchecked != "" {
			c.notTested = append(c.notTested, fmt.Sprintf("%s: %s", e.Attachment(), unchecked))
			continue
		}
		checked++
		if err == nil || doctor.Deleted(c.runner.Cache, e) {
			continue
		}
		todo := ""
		if errors.Is(err, spec.ErrAnew) {
			todo = ": del and add"
			lost++
		}
		c.runner.Warn("check %s: %v%s", e.Attachment(), hint.Line(err), todo)
		c.fault(e.Attachment(), err)
		failed++
	}
	c.problem("cache", unread)
	return c.report(ctx, checkDoc{checked, c.found()}, c.notAsAdded(failed, lost, checked, unread))
}

// notAsAdded is the error of check --all; nil: all is well. Of those that failed, so many are lost.
func (c *checkCall) notAsAdded(failed, lost, checked int, unread error) error {
	if failed == 0 {
		return unread
	}
	if unread != nil {
		c.runner.Warn("%v", unread)
	}
	advice := ""
	if lost < failed {
		advice = "`cni-exec reload` restores what it can, and names the rest"
	}
	return &hint.Error{Err: spec.Errorf(spec.CodeCheck, "%d of %d attachments are not as add left them", failed, checked), Hint: advice}
}
