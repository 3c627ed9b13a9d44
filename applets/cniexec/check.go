package cniexec

import (
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
	return &verb{name: "check", operands: "NETWORK NETNS | ID|NETWORK | --all", summary: "is it still as add left it?", new: func(c *call) action { return &checkCall{call: c} },
		text: `The exit code says it: 0, or 1 with what is wrong on stderr, and whether reload
restores it or only del and add do. One operand is a container, or a network
with all its containers.`,
		examples: []example{
			{"cni-exec check blue", "every attachment of a container"},
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
	if !c.all && len(operands) == 1 && operands[0] != "" && c.containerID == "" {
		return exitOK, c.checkNamed(ctx, operands[0])
	}
	err := c.allOr(c.all, operands, 2)
	if err == nil && !c.all {
		err = c.link.needs(&c.runtimeConf)
	}
	if err != nil {
		return 0, usage("check: %w", err)
	}
	if err := c.prepare(); err != nil {
		return 0, err
	}
	if c.all {
		entries, unread := c.runner.Entries()
		checked, err := c.checkAll(ctx, entries, unread)
		return exitOK, c.report(ctx, checkDoc{checked, c.found()}, err)
	}
	c.link.setTarget(&c.runtimeConf)
	return exitOK, c.check(ctx)
}

// A checkDoc is the document of check.
type checkDoc struct {
	Checked int `json:"checked"`
	foundDoc
}

// check runs CHECK. Without -o json it prints nothing: the exit code is the answer.
func (c *checkCall) check(ctx context.Context) error {
	l, err := c.load()
	if err != nil {
		return err
	}
	if err = c.runner.Check(ctx, l, c.runtimeConf); err != nil {
		if spec.AsError(err).Code == spec.CodeEnv { // nothing was checked
			return err
		}
		a := spec.Attachment{Network: c.network, ContainerID: c.runtimeConf.ContainerID, IfName: c.runtimeConf.IfName}
		c.fault(c.entryOf(a, c.runtimeConf.NetNS), err)
	}
	return c.report(ctx, checkDoc{1, c.found()}, err)
}

// checkNamed runs CHECK of the attachments of a container, or of a network. If none is alive that
// is an error.
func (c *checkCall) checkNamed(ctx context.Context, name string) error {
	if err := c.prepare(); err != nil {
		return err
	}
	c.about = name
	entries, err := c.entriesNamed(name)
	if err != nil {
		return err
	}
	checked, err := c.checkAll(ctx, entries, nil)
	if err == nil && checked == 0 {
		return spec.Errorf(spec.CodeUnknown, "no attachment of %q is alive and has a CHECK: `cni-exec ls` has the state of each", name)
	}
	return c.report(ctx, checkDoc{checked, c.found()}, err)
}

// checkAll runs CHECK of the attachments whose namespace exists, and returns their number. The
// others are left to gc. Versions of the specification before 0.4.0 have no CHECK. Attachments
// whose container is locked by another verb, which may hang, come last.
func (c *checkCall) checkAll(ctx context.Context, entries []*chain.Entry, unread error) (checked int, err error) {
	defer memory.CollectLess()()
	ctx, forget := once.WithCache(ctx) // one socket on the host, and each configuration decoded once
	defer forget()
	title := chain.Titles(entries)
	running := c.runner.Cache.Running()
	var idle, busy []*chain.Entry
	for _, e := range entries {
		if running(e.ContainerID) {
			busy = append(busy, e)
		} else {
			idle = append(idle, e)
		}
	}
	failed, lost := 0, 0
	type judged struct {
		attached, deleted bool
		unchecked         string
		err               error
	}
	judge := func(runner *chain.Runner, e *chain.Entry) (j judged) {
		if j.attached = e.Attached(); j.attached {
			j.unchecked, j.err = doctor.Judge(ctx, runner, e)
			j.deleted = j.err != nil && doctor.Deleted(runner.Cache, e)
		}
		return j
	}
	report := func(e *chain.Entry, j judged) {
		switch {
		case !j.attached:
			return
		case j.unchecked != "":
			c.notTested = append(c.notTested, fmt.Sprintf("%s: %s", title(e), j.unchecked))
			return
		}
		checked++
		if j.err == nil || j.deleted {
			return
		}
		todo := ""
		if errors.Is(j.err, spec.ErrNeedsAdd) {
			todo = ": del and add"
			lost++
		}
		c.runner.Warn("check %s: %v%s", title(e), hint.Line(j.err), todo)
		c.fault(e, j.err)
		failed++
	}
	for _, part := range [][]*chain.Entry{idle, busy} {
		found := make([]judged, len(part))
		c.runner.Once().ForEach(ctx, len(part), func(i int) string { return part[i].ContainerID },
			func(r *chain.Runner, i int) { found[i] = judge(r, part[i]) }, func(i int) { report(part[i], found[i]) })
		if ctx.Err() != nil {
			return checked, context.Cause(ctx)
		}
	}
	c.problem("cache", unread)
	return checked, c.notAsAdded(failed, lost, checked, unread)
}

// notAsAdded returns the error of check --all; nil: none has failed. lost of the failed ones are
// lost.
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
