package dhcp

import (
	"bytes"
	"net"
	"net/http"
	"net/rpc"
	"sync"
)

// serveHTTP serves net/rpc over HTTP as the reference's daemon does.
func serveHTTP(l net.Listener, s *rpc.Server) {
	mux := http.NewServeMux()
	mux.Handle(rpc.DefaultRPCPath, s)
	http.Serve(l, mux)
}

// A lockedBuffer is a buffer for several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
