// Package undo takes back what a verb has done before it failed: one stack for all
// plugins, with one limit of time and one way to report what could not be undone.
package undo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cnibox/rtnl"
	"cnibox/spec"
)

// limit is how long all of it may take, whatever became of the context of the verb. A
// runtime that gave up on the verb still waits for the process for a while.
const limit = 5 * time.Second

// A Stack holds how to undo what a verb has done so far. The zero value is empty.
type Stack struct{ steps []step }

type step struct {
	what string // for people
	fn   func(context.Context) error
}

// Add registers how to undo what was just done, or is about to be tried. The context that
// fn gets is not the verb's, which may have ended. fn must be fine with a deed that was
// not done after all, or is gone already: os.ErrNotExist is no error here.
func (s *Stack) Add(what string, fn func(context.Context) error) {
	s.steps = append(s.steps, step{what, fn})
}

// Failed undoes all, last first, and returns cause with what could not be undone in its
// details; its code stays. A nil cause is a verb that succeeded: nothing is undone.
func (s *Stack) Failed(ctx context.Context, cause error) error {
	if cause == nil || len(s.steps) == 0 {
		return cause
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	var left []error
	for i := len(s.steps) - 1; i >= 0; i-- {
		if err := rtnl.SkipAbsent(s.steps[i].fn(ctx)); err != nil {
			left = append(left, fmt.Errorf("undo %s: %w", s.steps[i].what, err))
		}
	}
	s.steps = nil
	if left == nil {
		return cause
	}
	return spec.AsError(cause).WithDetails("%v", errors.Join(left...))
}
