package cniexec

import (
	"cmp"
	"context"
	"errors"

	"cnibox/applets/cniexec/doctor"
	"cnibox/chain"
	"cnibox/spec"
)

// A foundDoc is the part of a verb's JSON document with its findings. Lists are never null.
type foundDoc struct {
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
func (c *call) found() foundDoc { return foundDoc{notNull(c.findings), notNull(c.notTested)} }

// fault records what CHECK or RESTORE has found for an attachment.
func (c *call) fault(e *chain.Entry, err error) {
	c.findings = append(c.findings, doctor.Fault(e, err))
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

// problem records an error about a network, several of its attachments or, without a network, a
// namespace: one finding for each joined error. what is the part of the host, or the verb, that the
// error concerns.
func (c *call) problem(what string, err error) {
	if c.output != outputJSON {
		return
	}
	for _, err := range parts(err) {
		f := doctor.Finding{Check: what, Where: cmp.Or(c.network, what), Network: c.network}
		if c.network == "" && c.runtimeConf.NetNS != "" {
			f.Where, f.NetNS = c.runtimeConf.NetNS, c.runtimeConf.NetNS
		}
		switch of := err.(type) { //nolint:errorlint // the outermost: parts has split it
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

// ofNetNS returns a netnsError; nil stays nil.
func ofNetNS(a spec.Attachment, netns string, err error) error {
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
	joined, ok := err.(interface{ Unwrap() []error })                  //nolint:errorlint // the outermost alone is split
	if !ok || errors.Join(joined.Unwrap()...).Error() != err.Error() { // fmt.Errorf with several %w has a text of its own
		return []error{err}
	}
	for _, e := range joined.Unwrap() {
		all = append(all, parts(e)...)
	}
	return all
}

// report writes the document of a verb that has done its work, with -o json, and returns the error
// for stderr. A verb that a signal has ended has no document.
func (c *call) report(ctx context.Context, doc any, err error) error {
	if c.output != outputJSON || ctx.Err() != nil {
		return err
	}
	if _, failed := c.writeJSON(doc); failed != nil {
		return failed
	}
	return err
}
