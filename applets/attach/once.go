package attach

import (
	"context"
	"sync"
)

// A memory is what restoring many attachments has done already, by key.
type memory struct {
	mu   sync.Mutex
	done map[string]bool
}

type memoryKey struct{}

// Remember returns a context in which [Once] does once what several attachments have in common,
// as their bridge.
func Remember(ctx context.Context) context.Context {
	return context.WithValue(ctx, memoryKey{}, &memory{done: map[string]bool{}})
}

// Once calls fn, unless it was called for the key without an error since [Remember].
func Once(ctx context.Context, key string, fn func() error) error {
	m, ok := ctx.Value(memoryKey{}).(*memory)
	if !ok {
		return fn()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.done[key] {
		return nil
	}
	err := fn()
	m.done[key] = err == nil
	return err
}
