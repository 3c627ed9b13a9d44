package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// A Change is a kind of change that is made once for all plugins and attachments of a session, such as that of the rule
// set. Different kinds are made at the same time.
type Change interface {
	// Take takes what was left until now, and returns the function that makes it; nil: nothing was left. Its errors go to
	// [Session.Fail] of those who left it. aside: it runs on a goroutine of its own, beside the others.
	Take(ctx context.Context, s *Session) (do func(), aside bool)

	// Discard drops what was left.
	Discard()
}

// A plan is what is left for a Commit.
type plan struct {
	mu   sync.Mutex
	kind []Change // each once
	last []deferred

	failed map[*attachment]bool

	keeping sync.Mutex // held while something is opened
	kept    map[any]any
	closers []func()
}

// A deferred is what is done at the end of Commit for an attachment.
type deferred struct {
	s  *Session
	fn func(context.Context) error
}

// Left returns the session's change of a kind. It is the zero value at first.
func Left[T any, C interface {
	*T
	Change
}](s *Session) C {
	s.plan.mu.Lock()
	defer s.plan.mu.Unlock()
	for _, c := range s.plan.kind {
		if c, ok := c.(C); ok {
			return c
		}
	}
	c := C(new(T))
	s.plan.kind = append(s.plan.kind, c)
	return c
}

// Last makes Commit call a function after the changes, unless one of the attachment has failed: an address is leased
// again only when its link and its rules are gone.
func (s *Session) Last(fn func(context.Context) error) {
	s.plan.mu.Lock()
	defer s.plan.mu.Unlock()
	s.plan.last = append(s.plan.last, deferred{s, fn})
}

// Together calls fn with a session whose changes are made together at its end. If those of s are left for a Commit, that
// is s.
func (s *Session) Together(ctx context.Context, fn func(*Session) error) error {
	if s.Leaves() {
		return fn(s)
	}
	var errs []error
	own := s.Apart().Leaving(func(err error) { errs = append(errs, err) })
	err := fn(own)
	own.Commit(ctx)
	return errors.Join(append([]error{err}, errs...)...)
}

// Commit makes the changes that were left, and those that they leave.
func (s *Session) Commit(ctx context.Context) {
	defer s.plan.release()
	for s.makeChanges(ctx) {
	}
	s.plan.mu.Lock()
	last := s.plan.last
	s.plan.last = nil
	s.plan.mu.Unlock()
	for _, l := range last {
		if l.s.failed() {
			continue
		}
		err := context.Cause(ctx)
		if err == nil {
			err = Recover(func() error { return l.fn(ctx) })
		}
		l.s.Fail(err)
	}
}

func (s *Session) failed() bool {
	s.plan.mu.Lock()
	defer s.plan.mu.Unlock()
	return s.plan.failed[s.of]
}

// makeChanges makes what was left, and reports whether there was anything.
func (s *Session) makeChanges(ctx context.Context) bool {
	s.plan.mu.Lock()
	kinds := s.plan.kind
	s.plan.mu.Unlock()
	var aside sync.WaitGroup
	var own []func()
	any := false
	for _, c := range kinds {
		do, beside := c.Take(ctx, s)
		switch {
		case do == nil:
			continue
		case beside:
			aside.Go(do)
		default:
			own = append(own, do)
		}
		any = true
	}
	for _, do := range own {
		do()
	}
	aside.Wait()
	return any
}

// Discard drops the changes that were left, as after a failed ADD.
func (s *Session) Discard() {
	s.plan.mu.Lock()
	defer s.plan.mu.Unlock()
	for _, c := range s.plan.kind {
		c.Discard()
	}
	s.plan.last = nil
	s.plan.release()
}

// release closes what [Keep] has opened.
func (p *plan) release() {
	p.keeping.Lock()
	defer p.keeping.Unlock()
	for _, end := range p.closers {
		end()
	}
	p.kept, p.closers = nil, nil
}

// Recover turns a panic into an error: the recover of the serve loop does not see one of another goroutine.
func Recover(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return fn()
}
