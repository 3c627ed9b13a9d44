// Package undo undoes what a verb has done before it failed: one stack for all plugins,
// with one time limit and one way to report what could not be undone.
//
// Each step is registered on the line after the change, or before a change that may be made
// in part, and the verb ends with [Stack.Failed]:
//
//	var undo undo.Stack
//	if err := host.AddLink(port); err != nil {
//		return undo.Failed(ctx, err)
//	}
//	undo.Add("link "+port.Name, func(context.Context) error { return host.DelLink(port.Name) })
package undo

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cnibox/cnibox/internal/interrupt"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// A Stack has the steps that undo what a verb has done so far. The zero value is empty and
// ready for use. Several goroutines must not use it at once.
type Stack struct{ steps []step }

type step struct {
	what string // for the error
	fn   func(context.Context) error
}

// Add registers how to undo what was just done, or is about to be tried; what names it, such
// as "link eth0". The context of fn is not the verb's, which may have ended. fn may find that
// there is nothing to undo: os.ErrNotExist is not an error here.
func (s *Stack) Add(what string, fn func(context.Context) error) {
	s.steps = append(s.steps, step{what, fn})
}

// Failed runs all steps, the last one first, even if some of them fail, and empties the stack.
// Together they may take [interrupt.Undo], even if the context of the verb has ended: a runtime
// that has cancelled it waits a while for the process. Failed returns cause with its code, and
// with what could not be undone in its details. If cause is nil, the verb has succeeded, and
// nothing is undone.
func (s *Stack) Failed(ctx context.Context, cause error) error {
	if cause == nil || len(s.steps) == 0 {
		return cause
	}
	ctx, cancel := interrupt.UndoContext(ctx, interrupt.Undo)
	defer cancel()
	var left []error
	for _, step := range slices.Backward(s.steps) {
		if err := rtnl.SkipAbsent(step.fn(ctx)); err != nil {
			left = append(left, fmt.Errorf("undo %s: %w", step.what, err))
		}
	}
	s.steps = nil
	if left == nil {
		return cause
	}
	return spec.AsError(cause).WithDetails("%v", errors.Join(left...))
}
