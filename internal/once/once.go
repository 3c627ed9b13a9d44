// Package once shares work among the attachments of one verb: what they have in common is done, read
// or opened once. A verb about several attachments enables it by [WithCache].
package once

import (
	"context"
	"sync"
)

// A cache has what was done, read or opened already, by key.
type cache struct {
	mu    sync.Mutex
	known map[string]any
	close []func()
}

type cacheKey struct{}

// WithCache returns a context in which [Do] and [Get] call their function once for each key, such as
// that of a bridge, and what [Open] has opened stays open until forget.
func WithCache(ctx context.Context) (_ context.Context, forget func()) {
	m := &cache{known: map[string]any{}}
	return context.WithValue(ctx, cacheKey{}, m), func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, end := range m.close {
			end()
		}
		m.known, m.close = map[string]any{}, nil
	}
}

// HasCache reports whether the context is from [WithCache], and so for several attachments.
func HasCache(ctx context.Context) bool {
	_, ok := ctx.Value(cacheKey{}).(*cache)
	return ok
}

// Do calls fn with arg, unless it was called for the key without an error since [WithCache].
func Do[T any](ctx context.Context, key string, fn func(T) error, arg T) error {
	m, ok := ctx.Value(cacheKey{}).(*cache)
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

// Get returns the value of get for the key. Since [WithCache] it calls get until it succeeds, and then
// returns the same value. Each key has values of one type.
func Get[T any](ctx context.Context, key string, get func() (T, error)) (T, error) {
	m, ok := ctx.Value(cacheKey{}).(*cache)
	if !ok {
		return get()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return known(m, key, get)
}

// known is Get under the lock.
func known[T any](m *cache, key string, get func() (T, error)) (T, error) {
	if v, ok := m.known[key].(T); ok {
		return v, nil
	}
	v, err := get()
	if err == nil {
		m.known[key] = v
	}
	return v, err
}

// Open is [Get] for a value that has to be closed. The caller calls done, which closes it unless it
// stays open for other attachments.
func Open[T any](ctx context.Context, key string, open func() (T, error), close func(T)) (v T, done func(), err error) {
	m, ok := ctx.Value(cacheKey{}).(*cache)
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
