package undo

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/cnibox/cnibox/spec"
)

// Failed undoes everything once, in reverse order, with a context that has not ended. An undo that
// fails is in details; the error keeps its code.
func TestFailedUndoes(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var s Stack
	var ran []string
	add := func(what string, err error) {
		s.Add(what, func(ctx context.Context) error {
			if ctx.Err() != nil {
				t.Errorf("undo %s: its context has ended", what)
			}
			ran = append(ran, what)
			return err
		})
	}
	add("bridge", nil)
	add("link", errors.New("stuck"))
	add("address", os.ErrNotExist)
	cause := spec.Errorf(spec.CodeBusy, "taken")
	err := spec.AsError(s.Failed(ctx, cause))
	if err.Code != spec.CodeBusy || err.Msg != "taken" || err.Details != "undo link: stuck" {
		t.Errorf("got %+v", err)
	}
	if want := []string{"address", "link", "bridge"}; !slices.Equal(ran, want) {
		t.Errorf("undone: %q, want %q", ran, want)
	}
	if err := s.Failed(ctx, cause); !errors.Is(err, cause) || len(ran) != 3 {
		t.Errorf("a second time: %v, %q", err, ran)
	}
}

// Without an error nothing is undone.
func TestFailedWithoutError(t *testing.T) {
	var s Stack
	s.Add("link", func(context.Context) error { t.Error("undone"); return nil })
	if err := s.Failed(t.Context(), nil); err != nil {
		t.Error(err)
	}
}
