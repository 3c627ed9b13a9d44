package fault

import "sync"

// Work is a kind of work that [Count] counts.
type Work string

const (
	Requests     Work = "requests"     // netlink messages to the kernel
	Answers      Work = "answers"      // netlink messages from the kernel; a dump that is repeated counts once
	Received     Work = "received"     // bytes in these
	Transactions Work = "transactions" // of nf_tables
	Waits        Work = "waits"        // reads that are repeated since the kernel was not done
	Sockets      Work = "sockets"      // netlink sockets that are opened, or kept open since closing takes long
	Namespaces   Work = "namespaces"   // network namespaces that are opened
	Threads      Work = "threads"      // functions that run on a thread of their own
	Changes      Work = "changes"      // calls of [Check]
	Files        Work = "files"        // files that are opened, other than locks
	Bytes        Work = "bytes"        // of these, without those of /proc, which others make longer
	Lists        Work = "lists"        // directories that are listed
	Names        Work = "names"        // in these
	Lookups      Work = "lookups"      // of programs
	Locks        Work = "locks"        // of files
)

// done receives what is done; nil outside tests.
var done func(w Work, n int)

// Done counts n pieces of work. Outside tests it costs one comparison.
func Done(w Work, n int) {
	if done != nil {
		done(w, n)
	}
}

// Count returns the work that is done during fn, in any goroutine. As with [Hook], no other test may
// run meanwhile.
func Count(fn func()) map[Work]int {
	var mu sync.Mutex
	counts := map[Work]int{}
	done = func(w Work, n int) {
		mu.Lock()
		defer mu.Unlock()
		counts[w] += n
	}
	defer func() { done = nil }()
	fn()
	mu.Lock()
	defer mu.Unlock()
	return counts
}
