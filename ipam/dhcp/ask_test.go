package dhcp

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A fakeClient answers by a function; the time of an answer is that of its wait.
type fakeClient struct {
	answer func(step) (*Lease, error)
	did    []step
	at     []time.Time
}

func (c *fakeClient) ask(ctx context.Context, s step, _ *Lease, wait time.Duration) (*Lease, error) {
	c.did, c.at = append(c.did, s), append(c.at, time.Now())
	l, err := c.answer(s)
	if errors.Is(err, errTimeout) {
		pause(ctx, wait)
	}
	return l, err
}

func (*fakeClient) release(context.Context, *Lease) error { return nil }
func (*fakeClient) close()                                {}

// acquired asks for a lease for at most a minute, with a fake clock.
func acquired(t *testing.T, answer func(step) (*Lease, error)) (c *fakeClient, l *Lease, took time.Duration, err error) {
	t.Helper()
	c = &fakeClient{answer: answer}
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		h := Resume(State{}, Settings{Timeout: 10 * time.Second, Log: func(string) {}}, discardStore{})
		l, err = h.acquire(ctx, c, nil, false)
		took = time.Since(begin)
	})
	return c, l, took, err
}

// DISCOVERs without an answer are repeated, each after a longer pause, until the timeout.
func TestAcquireSilence(t *testing.T) {
	c, _, took, err := acquired(t, func(step) (*Lease, error) { return nil, errTimeout })
	if took != time.Minute || !errors.As(err, new(*TimeoutError)) {
		t.Errorf("after %s: %v", took, err)
	}
	for i := range c.did {
		longest := min(firstWait<<(max(i, 1)-1), 10*time.Second)
		if i > 0 && (c.at[i].Sub(c.at[i-1]) < longest*3/4 || c.at[i].Sub(c.at[i-1]) > longest*5/4) || c.did[i] != discover {
			t.Errorf("message %d is %d, after %s", i, c.did[i], c.at[i].Sub(c.at[max(i, 1)-1]))
		}
	}
}

// A REQUEST without an answer is repeated; then all servers are asked again.
func TestAcquireLostRequests(t *testing.T) {
	asked := 0
	c, l, _, err := acquired(t, func(s step) (*Lease, error) {
		if s == request {
			if asked++; asked <= requests {
				return nil, errTimeout
			}
		}
		return lease(0), nil
	})
	if want := []step{discover, request, request, request, request, discover, request}; !slices.Equal(c.did, want) || l == nil {
		t.Errorf("got %v, %v", c.did, err)
	}
}

// A server that always refuses is asked as often as one that is silent.
func TestAcquireRefused(t *testing.T) {
	c, _, took, err := acquired(t, func(s step) (*Lease, error) {
		if s == request {
			return nil, errRefused
		}
		return lease(0), nil
	})
	if took != time.Minute || !errors.Is(err, errRefused) || len(c.did) < 10 || len(c.did) > 40 {
		t.Errorf("after %s and %d messages: %v", took, len(c.did), err)
	}
	for i, s := range c.did {
		if s != []step{discover, request}[i%2] {
			t.Errorf("got %v", c.did)
			break
		}
	}
}
