package attach

import (
	"context"
	"sync"
)

// A memory is what restoring many attachments has done or found out already, by key.
type memory struct {
	mu    sync.Mutex
	known map[string]any
}

type memoryKey struct{}

// Remember returns a context in which [Once] does once what several attachments have in common,
// as their bridge, and [Known] finds it out once.
func Remember(ctx context.Context) context.Context {
	return context.WithValue(ctx, memoryKey{}, &memory{known: map[string]any{}})
}

// Once calls fn, unless it was called for the key without an error since [Remember].
func Once(ctx context.Context, key string, fn func() error) error {
	_, err := Known(ctx, key, func() (struct{}, error) { return struct{}{}, fn() })
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
	if v, ok := m.known[key].(T); ok {
		return v, nil
	}
	v, err := get()
	if err == nil {
		m.known[key] = v
	}
	return v, err
}
