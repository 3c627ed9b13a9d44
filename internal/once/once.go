// Package once does once what several attachments have in common, and keeps open for all of them
// what each would open: a verb that is about many asks for it by [Remember].
package once

import (
	"context"
	"sync"
)

// A memory is what was done, found out or opened already, by key.
type memory struct {
	mu    sync.Mutex
	known map[string]any
	close []func()
}

type memoryKey struct{}

// Remember returns a context in which [Do] does once what several attachments have in common, as
// their bridge, [Known] finds it out once, and what [Open] has opened stays open until forget.
func Remember(ctx context.Context) (_ context.Context, forget func()) {
	m := &memory{known: map[string]any{}}
	return context.WithValue(ctx, memoryKey{}, m), func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, end := range m.close {
			end()
		}
		m.known, m.close = map[string]any{}, nil
	}
}

// Remembers reports whether the context is of [Remember], and so of several attachments.
func Remembers(ctx context.Context) bool {
	_, ok := ctx.Value(memoryKey{}).(*memory)
	return ok
}

// Do calls fn with arg, unless it was called for the key without an error since [Remember].
func Do[T any](ctx context.Context, key string, fn func(T) error, arg T) error {
	m, ok := ctx.Value(memoryKey{}).(*memory)
	if !ok {
		return fn(arg)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known[key] != nil {
		return nil
	}
	err := fn(arg)
	if err == nil {
		m.known[key] = true
	}
	return err
}

// Known returns what get has returned for the key since [Remember], and calls it unless it was
// called without an error. Each key has values of one type.
func Known[T any](ctx context.Context, key string, get func() (T, error)) (T, error) {
	m, ok := ctx.Value(memoryKey{}).(*memory)
	if !ok {
		return get()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return known(m, key, get)
}

// known is Known under the lock.
func known[T any](m *memory, key string, get func() (T, error)) (T, error) {
	if v, ok := m.known[key].(T); ok {
		return v, nil
	}
	v, err := get()
	if err == nil {
		m.known[key] = v
	}
	return v, err
}

// Open is Known for what has to be closed. The caller calls done, which closes it unless it stays
// open for others.
func Open[T any](ctx context.Context, key string, open func() (T, error), close func(T)) (v T, done func(), err error) {
	m, ok := ctx.Value(memoryKey{}).(*memory)
	if !ok {
		v, err = open()
		return v, func() { close(v) }, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	v, err = known(m, key, func() (T, error) {
		v, err := open()
		if err == nil {
			m.close = append(m.close, func() { close(v) })
		}
		return v, err
	})
	return v, func() {}, err
}
