package once_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"cnibox/internal/once"
)

// What was opened for many is opened once, after an error again, and closed at the end; without a
// memory each caller opens and closes it.
func TestOpen(t *testing.T) {
	opened, open, fail := 0, 0, true
	call := func(ctx context.Context) error {
		_, done, err := once.Open(ctx, "x", func() (int, error) {
			if fail {
				return 0, errors.New("made to fail")
			}
			opened++
			open++
			return opened, nil
		}, func(int) { open-- })
		if err == nil {
			done()
		}
		return err
	}
	ctx, forget := once.WithCache(t.Context())
	if call(ctx) == nil {
		t.Error("no error")
	}
	fail = false
	for range 3 {
		if err := call(ctx); err != nil {
			t.Error(err)
		}
	}
	if opened != 1 || open != 1 {
		t.Errorf("opened %d times, %d are open", opened, open)
	}
	forget()
	if open != 0 {
		t.Errorf("%d are open at the end", open)
	}
	for range 2 {
		if err := call(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if opened != 3 || open != 0 {
		t.Errorf("without a memory: opened %d times, %d are open", opened, open)
	}
}

// What was done without an error is not done again, for its key, and without a memory each time.
func TestDo(t *testing.T) {
	var done []string
	fail := true
	do := func(ctx context.Context, key string) error {
		return once.Do(ctx, key, func(what string) error {
			if fail {
				return errors.New("made to fail")
			}
			done = append(done, what)
			return nil
		}, "did "+key)
	}
	ctx, forget := once.WithCache(t.Context())
	defer forget()
	if do(ctx, "a") == nil {
		t.Error("no error")
	}
	fail = false
	for _, c := range []context.Context{ctx, ctx, t.Context(), t.Context()} {
		if err := errors.Join(do(c, "a"), do(c, "b")); err != nil {
			t.Error(err)
		}
	}
	if got := strings.Join(done, " "); got != strings.TrimSpace(strings.Repeat("did a did b ", 3)) {
		t.Errorf("got %q", got)
	}
}
