package applet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/memory"
	"github.com/cnibox/cnibox/spec"
)

// versionTimeout is how long VERSION waits for the end of its input, which it does not need:
// runtimes write a few bytes at once, and a terminal sends nothing.
const versionTimeout = 100 * time.Millisecond

// readInput reads r to its end, or one byte more than the largest configuration, which
// [spec.NewRequest] then refuses. With a limit above 0 it returns what it has read by then. Unlike
// a plain read it ends with ctx. With an error it returns what it read before.
func readInput(ctx context.Context, r io.Reader, limit time.Duration) ([]byte, error) {
	f, ok := r.(*os.File)
	if !ok {
		return readAll(r)
	}
	if _, err := f.Stat(); err != nil { // closed: poll would wait for ever
		return nil, err
	}
	in := &pollReader{ctx: ctx, file: f, limited: limit > 0}
	if in.limited {
		var cancel context.CancelFunc
		in.ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	conf, err := readAll(in)
	memory.For(len(conf))
	return conf, err
}

// Input reads stdin to its end, as readInput does. More than most bytes are an error, and so is an end
// that does not come within limit.
func (p Process) Input(ctx context.Context, most int, limit time.Duration) (doc []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	in := p.Stdin
	if f, ok := in.(*os.File); ok {
		if _, err := f.Stat(); err != nil {
			return nil, err
		}
		in = &pollReader{ctx: ctx, file: f}
	}
	doc, err = io.ReadAll(io.LimitReader(in, int64(most)+1))
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("it did not end within %s", limit)
	case err == nil && len(doc) > most:
		return nil, fmt.Errorf("it is larger than %d kB", most>>10)
	}
	return doc, err
}

// readAll reads to the end, or one byte more than the largest configuration.
func readAll(r io.Reader) ([]byte, error) { return io.ReadAll(io.LimitReader(r, spec.MaxConf+1)) }

// pollInterval is how often the context is checked, in milliseconds.
const pollInterval = 50

// A pollReader reads a file that may block. It needs neither a goroutine nor a second thread, since
// main is locked to the first thread. stdin is in blocking mode, so a read cannot have a deadline.
type pollReader struct {
	ctx     context.Context
	file    *os.File
	limited bool // the time limit counts as the end of the input
}

// Read returns io.EOF at the time limit. It checks the context twenty times a second. A pipe whose
// other end was closed is readable.
func (p *pollReader) Read(b []byte) (int, error) {
	fds := []unix.PollFd{{Fd: int32(p.file.Fd()), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, pollInterval)
		switch {
		case n > 0:
			return p.file.Read(b)
		case p.limited && errors.Is(p.ctx.Err(), context.DeadlineExceeded):
			return 0, io.EOF
		case p.ctx.Err() != nil:
			return 0, p.ctx.Err()
		case err != nil && !errors.Is(err, unix.EINTR):
			return 0, os.NewSyscallError("poll", err)
		}
	}
}
