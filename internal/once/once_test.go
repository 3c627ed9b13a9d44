package once_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"cnibox/internal/once"
)

// Open opens a resource once per cache, again after an error, and closes it with the cache. Without
// a cache each caller opens and closes its own.
func TestOpenOncePerCache(t *testing.T) {
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

// Do calls a function once per key and cache, again after an error, and without a cache each time.
func TestDoOncePerKey(t *testing.T) {
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
