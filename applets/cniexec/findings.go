package cniexec

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cnibox/cnibox/applets/cniexec/doctor"
	"github.com/cnibox/cnibox/applets/cniexec/hint"
	"github.com/cnibox/cnibox/chain"
	"github.com/cnibox/cnibox/spec"
)

// A findingsDoc is the part of a verb's JSON document with its findings. Lists are never null.
type findingsDoc struct {
	Findings  []doctor.Finding `json:"findings"`
	NotTested []string         `json:"notTested"` // with the reasons
}

// An attachmentName names an attachment in a document.
type attachmentName struct {
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
}

func nameOf(a spec.Attachment) attachmentName {
	return attachmentName{a.Network, a.ContainerID, a.IfName}
}

// found returns the findings of the call.
func (c *call) found() findingsDoc { return findingsDoc{notNull(c.findings), notNull(c.notTested)} }

// untested reports attachments that could not be tested; title names them.
func (c *call) untested(title func(*chain.Entry) string, list ...*chain.Judgement) {
	var undone []*chain.Judgement
	for _, j := range list {
		if j.Undone() {
			undone = append(undone, j)
		}
	}
	c.undone = c.undone || len(undone) > 0
	for _, line := range hint.NotTested(undone, title) {
		c.runner.Warn("not tested: %s", line)
	}
	c.notTested = append(c.notTested, hint.NotTested(list, title)...)
}

// untestedEntries reports files of the cache that are no entries, of which a warning has been printed:
// their attachments are not known.
func (c *call) untestedEntries(torn []error) {
	c.undone = c.undone || len(torn) > 0
	for _, err := range torn {
		c.notTested = append(c.notTested, spec.Printable("cache: "+err.Error()))
	}
}

// end returns the exit code of a verb, unless err is its error: 3 if something could not be looked at.
func (c *call) end(err error) (int, error) {
	if err == nil && c.undone {
		return exitUndone, nil
	}
	return exitOK, err
}

// patience is how long a verb waits for CHECK of an attachment, and for other verbs.
func (c *call) patience() time.Duration { return cmp.Or(c.timeout, chain.JudgeTime) }

// remedies returns what finds the remedies for attachments. all are those of the cache; nil: they are
// read when they are needed.
func (c *call) remedies(all []*chain.Entry) hint.Remedies {
	operand := sync.OnceValue(func() func(*chain.Entry) string {
		if all == nil {
			all, _, _ = c.runner.Cache.List()
		}
		return chain.Operands(all)
	})
	return hint.Remedies{Flags: c.stateFlags(false), Operand: func(e *chain.Entry) string { return operand()(e) }}
}

// stateFlags returns the flags of the call that name directories, which other verbs about the same
// attachments need as well. With all it has those of the environment, too.
func (c *call) stateFlags(all bool) (flags string) {
	v := findVerb(c.verb)
	if c.set == nil || v == nil {
		return ""
	}
	unset := v.declared(func(string) string { return "" })
	for _, name := range []string{"state-dir", "cache-dir", "conf-dir", "path"} {
		if f := c.set.Lookup(name); f != nil && (f.Changed || all && f.Value.String() != unset.Lookup(name).DefValue) {
			flags += " --" + name + " " + f.Value.String()
		}
	}
	return flags
}

// entryOf returns the entry of an attachment, or one with its names alone. netns is the path of its
// namespace; empty: that of the entry.
func (c *call) entryOf(a spec.Attachment, netns string) *chain.Entry {
	e, err := c.runner.Cache.Lookup(a)
	if err != nil {
		e = chain.EntryOf(a)
	}
	e.NetNS = cmp.Or(netns, e.NetNS)
	return e
}

// targetEntry is entryOf for the target of the call.
func (c *call) targetEntry() *chain.Entry { return c.entryOf(c.target.attachment(), c.target.NetNS) }

// problem records an error about a network, several of its attachments or, without a network, a
// namespace: one finding for each joined error. what is the part of the host, or the verb, that the
// error concerns.
func (c *call) problem(at target, what string, err error) {
	if c.output != outputJSON {
		return
	}
	for _, err := range parts(err) {
		f := doctor.Finding{Check: what, Where: cmp.Or(at.network, what), Network: at.network}
		if at.network == "" && at.NetNS != "" {
			f.Where, f.NetNS = at.NetNS, at.NetNS
		}
		switch of := any(err).(type) { // the outermost: parts has split it
		case *chain.AttachmentError:
			f.Where = of.Title
			f.SetAttachment(of.Attachment, c.entryOf(of.Attachment, "").NetNSPath())
			err = of.Err
		case *netnsError:
			f.Where = of.netns
			if of.Attachment != (spec.Attachment{}) {
				f.Where = c.entryOf(of.Attachment, of.netns).Title()
			}
			f.SetAttachment(of.Attachment, of.netns)
		}
		f.SetError(err)
		c.findings = append(c.findings, f)
	}
}

// A netnsError is an error about an attachment of a namespace, or about the namespace, whose text
// does not have these names.
type netnsError struct {
	spec.Attachment // zero: the error is about the namespace
	netns           string
	err             error
}

// Error is the text of the error.
func (e *netnsError) Error() string { return e.err.Error() }

// Unwrap returns the error.
func (e *netnsError) Unwrap() error { return e.err }

// withNetNS returns a netnsError; nil stays nil.
func withNetNS(a spec.Attachment, netns string, err error) error {
	if err == nil {
		return nil
	}
	return &netnsError{a, netns, err}
}

// parts returns the joined errors; nil has none.
func parts(err error) (all []error) {
	if err == nil {
		return nil
	}
	joined, ok := any(err).(interface{ Unwrap() []error })             // the outermost alone is split
	if !ok || errors.Join(joined.Unwrap()...).Error() != err.Error() { // fmt.Errorf with several %w has a text of its own
		return []error{err}
	}
	for _, e := range joined.Unwrap() {
		all = append(all, parts(e)...)
	}
	return all
}

// document writes the document of a verb that has done its work, with -o json, and returns the error
// for stderr. A verb that a signal has ended has no document.
func (c *call) document(ctx context.Context, doc any, err error) error {
	if c.output != outputJSON || ctx.Err() != nil {
		return err
	}
	if _, failed := c.writeJSON(doc); failed != nil {
		return failed
	}
	return err
}
