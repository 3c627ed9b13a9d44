package nlconn

import (
	"runtime"
	"sync/atomic"
	"testing"
)

// Goroutines on different processors take turns with the same socket.
func TestBorrowOnAnotherProcessor(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	s := borrow(-1)
	s.putBack()
	var other atomic.Pointer[socket]
	go func() {
		other.Store(borrow(-1))
	}()
	for other.Load() == nil { // keeps this goroutine's processor busy
	}
	if other.Load() != s {
		t.Error("another socket was made while one was idle")
	}
	other.Load().putBack()
}
