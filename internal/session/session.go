// Package session has what the plugins of one verb share in this process: the namespace and the sockets that
// are open, what many attachments ask alike, and the changes that are made together.
//
// Who begins a verb makes a [Session], hands it on in the request, commits and closes it: the serve loop for one
// plugin, package chain for a list or for many attachments. A plugin does not know which of them it is.
package session

import (
	"errors"
	"sync"

	"github.com/cnibox/cnibox/internal/netns"
)

// A Session is a verb as a plugin of one attachment sees it. It may be used from any goroutine.
type Session struct {
	verb *verb
	host *sockets    // on the host, of a goroutine
	of   *attachment // nil: of none
	plan *plan       // what is left for Commit
	fail func(error) // see Leaving; nil: changes are made at once
}

// A verb is what all attachments of a verb share.
type verb struct {
	many bool

	mu    sync.Mutex // held while something is asked
	known map[any]any
}

// An attachment is what the plugins of an attachment share.
type attachment struct {
	order   int
	key     string
	did     func(string)
	sockets sockets

	mu sync.Mutex
	ns *netns.NS // nil: not opened
}

// New returns a session for one attachment.
func New() *Session {
	return &Session{verb: &verb{known: map[any]any{}}, host: &sockets{}, plan: &plan{}}
}

// NewForMany returns a session for many attachments, which asks for what they have in common once.
func NewForMany() *Session {
	s := New()
	s.verb.many = true
	return s
}

// Many reports whether the session is for many attachments.
func (s *Session) Many() bool { return s.verb.many }

// Branch returns the session for another goroutine, with sockets of its own. The caller closes it.
func (s *Session) Branch() *Session { return &Session{verb: s.verb, host: &sockets{}, plan: s.plan} }

// For returns the session for an attachment, by its key. Its changes are made in the order of the attachments, and did
// gets in a few words what they have made; it may be nil. The caller closes the session, which closes the
// namespace of the attachment and the sockets in that.
func (s *Session) For(order int, key string, did func(string)) *Session {
	return &Session{verb: s.verb, host: s.host, plan: s.plan, of: &attachment{order: order, key: key, did: did}}
}

// Leaving returns the session for a plugin whose changes are left for [Session.Commit]. failed gets their errors.
func (s *Session) Leaving(failed func(error)) *Session {
	leaving := *s
	leaving.fail = failed
	return &leaving
}

// Wrapping returns the session for a delegate: wrap is called with the errors of what it leaves.
func (s *Session) Wrapping(wrap func(error) error) *Session {
	if !s.Leaves() {
		return s
	}
	return s.Leaving(func(err error) { s.fail(wrap(err)) })
}

// Apart returns the session with a Commit of its own.
func (s *Session) Apart() *Session {
	apart := *s
	apart.plan = &plan{}
	return &apart
}

// AtOnce returns the session for changes that are not left.
func (s *Session) AtOnce() *Session { return s.Leaving(nil) }

// Leaves reports whether changes are left for [Session.Commit]; otherwise they are made at once.
func (s *Session) Leaves() bool { return s.fail != nil }

// Order returns the position of the attachment among those of the verb.
func (s *Session) Order() int { return s.of.order }

// Key returns the key of the attachment.
func (s *Session) Key() string { return s.of.key }

// Did reports what a change has made for the attachment.
func (s *Session) Did(text string) {
	s.plan.mu.Lock()
	defer s.plan.mu.Unlock()
	if s.of.did != nil {
		s.of.did(text)
	}
}

// Fail reports the error of a change that was left; nil is ignored.
func (s *Session) Fail(err error) {
	if err == nil {
		return
	}
	s.plan.mu.Lock()
	defer s.plan.mu.Unlock()
	if s.plan.failed == nil {
		s.plan.failed = map[*attachment]bool{}
	}
	s.plan.failed[s.of] = true
	s.fail(err)
}

// NS returns the namespace of the attachment at a path; nil: it is not open.
func (s *Session) NS(path string) *netns.NS {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if s.of.ns == nil || s.of.ns.Path() != path {
		return nil
	}
	return s.of.ns
}

// Own makes a namespace that of the attachment, which the session closes. nil: it has none.
func (s *Session) Own(ns *netns.NS) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.ns.Close()
	s.of.ns = ns
}

// Close closes what was opened for the attachment, or for the goroutine.
func (s *Session) Close() error {
	if s.of != nil {
		s.of.mu.Lock()
		defer s.of.mu.Unlock()
		err := errors.Join(s.of.sockets.close(), s.of.ns.Close())
		s.of.ns = nil
		return err
	}
	return s.host.close()
}
