package cniexec

import (
	"context"
	"fmt"
	"io"

	"github.com/cnibox/cnibox/applets/cniexec/doctor"
	"github.com/cnibox/cnibox/applets/cniexec/hint"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/internal/memory"
	"github.com/cnibox/cnibox/internal/tty"
	"github.com/cnibox/cnibox/spec"
)

func checkVerb() *verb {
	return &verb{name: "check", group: "Attach", operands: "NETWORK NETNS | [ID|NETWORK]", summary: "check that attachments are as add left them", new: func(c *call) action { return &checkCall{call: c} },
		text: `The exit code says it: 0; 1 with what is wrong on stderr, and the commands that
restore it; 3 if nothing is wrong, but not everything could be looked at. One
operand is a container, or a network with all its containers; without any it is
every attachment, of other runtimes as well. A container for which another verb
is at work is waited for 10 s (--timeout).`,
		examples: []example{
			{"cni-exec check blue", "every attachment of a container"},
			{"cni-exec check", "every attachment of this host"},
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
	f.BoolVar(&c.all, "all", false, "")
	f.former("all", "leave it out, check without an operand is about all")
}

func (c *checkCall) do(ctx context.Context, operands []string) (int, error) {
	c.all = c.all || len(operands) == 0 && !c.selects()
	if !c.all && len(operands) == 1 && operands[0] != "" && c.containerID == "" {
		return c.checkNamed(ctx, operands[0])
	}
	err := c.allOr(c.all, operands, 2)
	if err == nil && !c.all {
		err = c.link.needs(c.target)
	}
	if err != nil {
		return 0, usage("check: %w", err)
	}
	if err := c.prepare(); err != nil {
		return 0, err
	}
	if c.all {
		entries, torn, unread := c.runner.Entries()
		c.untestedEntries(torn)
		checked, err := c.checkAll(ctx, entries, entries, unread)
		return c.end(c.document(ctx, checkDoc{checked, c.found()}, err))
	}
	c.link.setTarget(&c.target)
	return c.check(ctx)
}

// A checkDoc is the document of check.
type checkDoc struct {
	Checked int `json:"checked"`
	findingsDoc
}

// check runs CHECK. Without -o json it prints nothing: the exit code is the answer.
func (c *checkCall) check(ctx context.Context) (int, error) {
	l, err := c.load(c.target)
	if err != nil {
		return 0, err
	}
	c.runner.Cache.LockTimeout = c.patience()
	err = c.runner.Check(ctx, l, c.target.RuntimeConf)
	if err != nil && (spec.AsError(err).Code == spec.CodeEnv || ctx.Err() != nil) { // nothing was checked
		return 0, err
	}
	if err == nil && l.Unchecked() == "" { // the usual case: the entry is not read again
		return c.end(c.document(ctx, checkDoc{1, c.found()}, nil))
	}
	j := c.runner.Verdict(c.targetEntry(), err)
	checked := 0
	if j.State == chain.StateOK || j.State == chain.StateFault {
		checked++
	}
	switch {
	case j.Undone():
		c.untested((*chain.Entry).Title, j)
		err = nil
	case j.State != chain.StateOK:
		remedy := c.remedies(nil).For(j, false)
		f := doctor.Judged(j, remedy)
		c.findings = append(c.findings, f)
		if f.Repair != "" {
			err = &hint.Error{Err: spec.Errorf(f.Code, "%s", hint.Text(j)), Hint: remedy.Advice()}
		}
	}
	return c.end(c.document(ctx, checkDoc{checked, c.found()}, err))
}

// checkNamed runs CHECK of the attachments of a container, or of a network. If there are none that
// is an error.
func (c *checkCall) checkNamed(ctx context.Context, name string) (int, error) {
	if err := c.prepare(); err != nil {
		return 0, err
	}
	c.about = name
	entries, all, torn, err := c.entriesNamed(name)
	if err != nil {
		return 0, err
	}
	c.untestedEntries(torn)
	entries = c.ofInterface(entries)
	checked, err := c.checkAll(ctx, entries, all, nil)
	if err == nil && checked == 0 && !c.undone {
		return 0, spec.Errorf(spec.CodeUnknown, "no attachment of %q has a CHECK: `cni-exec ls` has the state of each", name)
	}
	return c.end(c.document(ctx, checkDoc{checked, c.found()}, err))
}

// checkAll runs CHECK of attachments, and prints a line about each that is not as add left it, and the
// commands that restore it below. all are
// those of the cache. It returns the number of those of which CHECK was run.
func (c *checkCall) checkAll(ctx context.Context, entries, all []*chain.Entry, unread error) (checked int, err error) {
	defer memory.CollectLess()()
	title, remedies := chain.Titles(entries), c.remedies(all)
	failed, looked := 0, 0
	var undone []*chain.Judgement
	err = c.runner.Judge(ctx, entries, c.patience(), func(j *chain.Judgement) {
		switch j.State {
		case chain.StateOK:
			checked++
			looked++
		case chain.StateBusy, chain.StateNotTested:
			undone = append(undone, j)
		default:
			if j.State == chain.StateFault {
				checked++
			}
			looked++
			failed++
			remedy := remedies.For(j, false)
			c.findings = append(c.findings, doctor.Judged(j, remedy))
			c.runner.Warn("check %s: %s", title(j.Entry), remedy.Line(hint.Text(j)))
			io.WriteString(c.Stderr, remedy.Below())
		}
	})
	if err != nil {
		return checked, err
	}
	if failed == 0 && len(undone) == 0 && unread == nil {
		c.nothing(fmt.Sprintf("%s checked, nothing is wrong", tty.Plural(checked, "attachment")))
	}
	c.untested(title, undone...)
	c.problem(target{}, "cache", unread)
	switch {
	case failed == 0:
		return checked, unread
	case unread != nil:
		c.runner.Warn("%v", unread)
	}
	// the lines above have the reasons, and what to do
	return checked, &hint.Error{Err: spec.Errorf(spec.CodeCheck, "%d of %d attachments are not as add left them", failed, looked)}
}
