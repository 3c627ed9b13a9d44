package nlconn

import (
	"runtime"
	"sync/atomic"
	"testing"
)

// A verb does with one socket what it does in turns, on whichever processor each turn is.
func TestBorrowOnAnotherProcessor(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	s := borrow(-1)
	s.putBack()
	var other atomic.Pointer[socket]
	go func() {
		other.Store(borrow(-1))
	}()
	for other.Load() == nil { // the processor of this goroutine stays busy
	}
	if other.Load() != s {
		t.Error("another socket was made while one was idle")
	}
	other.Load().putBack()
}
