package chain

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/cnibox/cnibox/internal/session"
)

// ForEach calls work with the numbers below n, in GOMAXPROCS goroutines at most; numbers of the same
// container run one after another, since a verb locks the container. work receives r with a
// session of each goroutine. done, unless it is nil, runs in the caller's goroutine,
// in the order of the numbers, for each number as soon as it and the earlier ones are finished. Numbers
// that were not begun when ctx ended are omitted.
func (r *Runner) ForEach(ctx context.Context, n int, container func(i int) string, work func(r *Runner, i int), done func(i int)) {
	var order []string
	numbers := map[string][]int{}
	for i := range n {
		id := container(i)
		if numbers[id] == nil {
			order = append(order, id)
		}
		numbers[id] = append(numbers[id], i)
	}
	var next atomic.Int64
	var warning sync.Mutex
	finished := make(chan int, n) // buffered, so that a slow done blocks no work
	worker := func() {
		own := *r
		own.Warn = func(format string, args ...any) {
			warning.Lock()
			defer warning.Unlock()
			r.Warn(format, args...)
		}
		if own.Session = session.New(); r.Session != nil {
			own.Session = r.Session.Branch()
		}
		defer own.Session.Close()
		for at := int(next.Add(1)) - 1; at < len(order); at = int(next.Add(1)) - 1 {
			for _, i := range numbers[order[at]] {
				if ctx.Err() != nil {
					return
				}
				work(&own, i)
				finished <- i
			}
		}
	}
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(order)) {
		workers.Go(worker)
	}
	if done == nil {
		workers.Wait()
		return
	}
	go func() {
		workers.Wait()
		close(finished)
	}()
	ready := make([]bool, n)
	at := 0
	for i := range finished {
		for ready[i] = true; at < n && ready[at]; at++ {
			done(at)
		}
	}
	for ; at < n; at++ { // skip the omitted numbers
		if ready[at] {
			done(at)
		}
	}
}
