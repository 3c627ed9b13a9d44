package chain_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/cnibox/cnibox/chain"
)

// ForEach runs concurrently for different containers and in order for one container, and calls done
// in the order of the numbers.
func TestForEach(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	const all, containers, ahead = 100, 7, 20
	begun, enough := 0, make(chan struct{})
	var mu sync.Mutex
	var busy [containers]bool
	var order [containers][]int
	var done []int
	work := func(_ *chain.Runner, i int) {
		of := i % containers
		mu.Lock()
		if busy[of] {
			t.Errorf("%d began while another one of container %d was worked on", i, of)
		}
		busy[of] = true
		order[of] = append(order[of], i)
		if begun++; begun == ahead {
			close(enough)
		}
		mu.Unlock()
		if i == 0 { // meanwhile the other goroutine runs many others
			<-enough
		}
		defer func() {
			mu.Lock()
			busy[of] = false
			mu.Unlock()
		}()
	}
	new(chain.Runner).ForEach(t.Context(), all, func(i int) string { return fmt.Sprint(i % containers) }, work, func(i int) {
		mu.Lock()
		defer mu.Unlock()
		if of := i % containers; !slices.Contains(order[of], i) {
			t.Errorf("%d is done before it began", i)
		}
		done = append(done, i)
	})
	if len(done) != all || !slices.IsSorted(done) {
		t.Errorf("done: %v", done)
	}
	for of, got := range order {
		if !slices.IsSorted(got) {
			t.Errorf("of container %d: %v", of, got)
		}
	}
}

// When the context ends, running work is finished and reported in order, and no other begins.
func TestForEachEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const all, last = 1000, 20
	var mu sync.Mutex
	var begun, done []int
	work := func(_ *chain.Runner, i int) {
		mu.Lock()
		defer mu.Unlock()
		begun = append(begun, i)
		if i == last {
			cancel()
		}
	}
	new(chain.Runner).ForEach(ctx, all, func(i int) string { return fmt.Sprint(i) }, work, func(i int) { done = append(done, i) })
	slices.Sort(begun)
	if len(begun) == all || !slices.Contains(done, last) || !slices.Equal(begun, done) {
		t.Errorf("begun %d, done %d, in order %t", len(begun), len(done), slices.IsSorted(done))
	}
}
