package dhcp

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/applets/record"
	"github.com/cnibox/cnibox/internal/flock"
	"github.com/cnibox/cnibox/internal/interrupt"
	"github.com/cnibox/cnibox/internal/state"
	"github.com/cnibox/cnibox/ipam/dhcp"
	"github.com/cnibox/cnibox/spec"
)

// flags are the daemon's flags, which are the reference's.
type flags struct {
	pidFile string // empty: none
	socket  string // including the root
	listen  int    // file descriptor of a listening socket; 0: none
	dhcp.Settings
}

// daemonMain runs the daemon until the context ends. It returns the exit status: then 0, 1 if it
// cannot start, 2 for wrong flags.
func daemonMain(ctx context.Context, p applet.Process) int {
	// One write for each line, so that lines of several goroutines do not mix.
	log := func(line string) { p.Complain("cnibox dhcp daemon", "%s", line) }
	if len(p.Args) > 0 && applet.IsHelp(p.Args[0]) {
		a, _ := p.Applets.Lookup("dhcp")
		return applet.WriteHelp(a, p.Stdout)
	}
	f, err := readFlags(p)
	if err != nil {
		log(err.Error() + " (`cnibox help dhcp` lists the flags)")
		return 2
	}
	f.Log = log
	defer interrupt.Begin()() // finishes the calls that run
	if err := f.run(ctx); err != nil {
		log(err.Error())
		return 1
	}
	return 0
}

// readFlags reads the flags and the variables of sd_listen_fds(3).
func readFlags(p applet.Process) (*flags, error) {
	f := &flags{}
	root, err := spec.StateDir(p.Getenv)
	if err != nil {
		return nil, err
	}
	set := flag.NewFlagSet("dhcp daemon", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.StringVar(&f.pidFile, "pidfile", "", "")
	set.StringVar(&f.Root, "hostprefix", "", "")
	set.StringVar(&f.socket, "socketpath", state.Dir(root, defaultSocket), "")
	set.BoolVar(&f.Broadcast, "broadcast", false, "")
	set.DurationVar(&f.Timeout, "timeout", 10*time.Second, "")
	set.DurationVar(&f.Pause, "resendmax", 62*time.Second, "")
	set.DurationVar(&f.AcquireTimeout, "resendtimeout", 208*time.Second, "")
	if err := set.Parse(p.Args); err != nil {
		return nil, err
	}
	f.Root = strings.TrimSuffix(f.Root, "/")
	f.socket = f.Root + f.socket
	fds := p.Getenv("LISTEN_FDS")
	switch {
	case set.NArg() > 0:
		return nil, fmt.Errorf("%q is not a flag", set.Arg(0))
	case f.Timeout <= 0 || f.Pause <= 0 || f.AcquireTimeout <= 0:
		return nil, errors.New("-timeout, -resendmax and -resendtimeout must be above 0")
	case f.pidFile != "" && !filepath.IsAbs(f.pidFile):
		return nil, fmt.Errorf("flag -pidfile: %q is not an absolute path", f.pidFile)
	case fds == "" || p.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()):
	case fds != "1":
		return nil, fmt.Errorf("the service manager passes %s sockets instead of 1", fds)
	default:
		f.listen = 3 // SD_LISTEN_FDS_START
	}
	if err := checkSocket(f.socket); err != nil {
		return nil, fmt.Errorf("flag -socketpath: %w", err)
	}
	return f, nil
}

// lockTime bounds the wait of a daemon for the end of the previous one.
const lockTime = 5 * time.Second

// run serves until the context ends. A second daemon for the same leases fails.
func (f *flags) run(ctx context.Context) error {
	var l net.Listener
	if f.listen != 0 {
		var err error
		if l, err = f.passedListener(); err != nil {
			return err
		}
		defer l.Close()
	}
	leases := leasesDir(f.socket)
	if err := os.MkdirAll(string(leases), 0o700); err != nil {
		return fmt.Errorf("directory of the leases: %w", err)
	}
	short, cancel := context.WithTimeout(ctx, lockTime)
	defer cancel()
	unlock, err := flock.Exclusive(short, filepath.Join(string(leases), "lock"), 0o600)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("another daemon has the leases in %s: stop it first", leases)
	}
	if err != nil {
		return err
	}
	defer unlock()
	if l == nil {
		if l, err = listenUnix(f.socket); err != nil {
			return err
		}
		defer l.Close()
	}
	if f.pidFile != "" {
		if err := record.Dir(filepath.Dir(f.pidFile)).Replace(filepath.Base(f.pidFile), []byte(strconv.Itoa(os.Getpid())+"\n")); err != nil {
			return fmt.Errorf("pid file: %w", err)
		}
		defer os.Remove(f.pidFile)
	}
	d := newDaemon(f.Settings, leases)
	d.resume()
	f.Log("listening at " + f.socket)
	return d.accept(ctx, l)
}

// passedListener returns the socket of the service manager. Its path replaces that of the flags:
// the leases are stored beside it, where plugins look for them.
func (f *flags) passedListener() (net.Listener, error) {
	file := os.NewFile(uintptr(f.listen), "socket of the service manager")
	defer file.Close() // the listener has a duplicate
	l, err := net.FileListener(file)
	if err != nil {
		return nil, fmt.Errorf("file descriptor %d of the service manager: %w", f.listen, err)
	}
	if path := l.Addr().String(); filepath.IsAbs(path) {
		f.socket = path
	}
	return l, nil
}

// listenUnix creates the socket, accessible only to its owner from the first moment. It removes the
// socket of a daemon that was killed.
func listenUnix(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("directory of the socket: %w", err)
	}
	conn, err := net.DialUnix("unix", nil, unixAddr(path))
	if err == nil {
		conn.Close()
		return nil, fmt.Errorf("another DHCP daemon listens at %s: stop it first", path)
	}
	if st, serr := os.Lstat(path); errors.Is(err, unix.ECONNREFUSED) && serr == nil && st.Mode()&fs.ModeSocket != 0 {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()                             // the listener has a duplicate
	if err := unix.Fchmod(fd, 0o600); err != nil { // before bind(2) this is the file's mode: unix(7)
		return nil, os.NewSyscallError("fchmod", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return nil, &os.PathError{Op: "bind", Path: path, Err: err}
	}
	if err := unix.Listen(fd, unix.SOMAXCONN); err != nil {
		return nil, os.NewSyscallError("listen", err)
	}
	l, err := net.FileListener(file)
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(true)
	return l, nil
}

// A daemon answers calls and renews the leases.
type daemon struct {
	dhcp.Settings
	leases record.Dir
	calls  sync.WaitGroup

	mu      sync.Mutex // guards the maps
	holders map[spec.Attachment]*dhcp.Holder
	busy    map[spec.Attachment]chan struct{}      // closed by the unlock of [daemon.lock]
	adding  map[spec.Attachment]context.CancelFunc // of running ADDs
}

func newDaemon(s dhcp.Settings, leases record.Dir) *daemon {
	return &daemon{
		Settings: s, leases: leases,
		holders: map[spec.Attachment]*dhcp.Holder{}, busy: map[spec.Attachment]chan struct{}{}, adding: map[spec.Attachment]context.CancelFunc{},
	}
}

// resume continues with the leases on record. If the daemon ended before the answer of an ADD, the
// lease is held, but not renewed, until the next DEL or ADD.
func (d *daemon) resume() {
	n := 0
	err := d.leases.Each(func(name string) error {
		if !strings.HasSuffix(name, ".json") {
			return nil
		}
		rec, err := record.Read[dhcp.State](d.leases, name)
		if err != nil || record.Name(rec.Attachment) != name {
			d.Log(name + " is not the record of a lease: ignored")
			return nil
		}
		store := &leaseStore{d.leases, rec.Attachment}
		h := dhcp.Resume(rec.Data, d.Settings, store)
		if !h.SameBoot() {
			return store.Drop()
		}
		d.holders[rec.Attachment] = h
		if rec.Data.Given {
			n++
			h.Keep()
		}
		return nil
	})
	if err != nil {
		d.Log(err.Error())
	}
	if n > 0 {
		d.Log(strconv.Itoa(n) + " leases taken up again")
	}
}

// accept serves calls until the context ends, then waits for running calls.
func (d *daemon) accept(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	defer d.end()
	for {
		conn, err := l.Accept()
		switch {
		case err == nil:
			d.calls.Go(func() { d.serve(ctx, conn) })
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM):
			d.Log(err.Error())
			select { // until some are closed
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		default:
			return err
		}
	}
}

// end waits for running calls, and stops renewing the leases, which stay valid.
func (d *daemon) end() {
	d.calls.Wait()
	for _, h := range d.holders {
		h.Stop()
	}
}

// serve answers one call. An ADD ends when its caller closes the connection.
func (d *daemon) serve(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(answerTime))
	var call call
	err := readMagic(conn)
	if errors.Is(err, errPeer) {
		d.Log(err.Error())
		io.WriteString(conn, "HTTP/1.0 505 "+err.Error()+"\r\n\r\n") // a plugin of the reference reports this
		return
	}
	if err == nil {
		_, err = io.WriteString(conn, magic)
	}
	if err != nil || receive(conn, &call) != nil {
		return
	}
	conn.SetDeadline(time.Time{})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		conn.Read(make([]byte, 1)) // returns when either end is closed
		cancel()
	}()
	leases, err := d.do(ctx, &call)
	answer := answer{Leases: leases}
	if err != nil {
		answer.Error = spec.AsError(err)
	}
	if err := send(conn, "", answer); err != nil && call.Verb == spec.Add && answer.Error == nil {
		d.Log(call.ContainerID + "/" + call.IfName + ": the caller is gone: its lease is released")
		if err := d.del(context.WithoutCancel(ctx), call.Attachment); err != nil {
			d.Log(err.Error())
		}
	}
}

func (d *daemon) do(ctx context.Context, call *call) ([]*dhcp.Lease, error) {
	switch call.Verb {
	case spec.Add:
		return d.add(ctx, call)
	case spec.Del:
		return nil, d.del(ctx, call.Attachment)
	case spec.Check:
		return d.check(call)
	case spec.Status:
		return nil, nil
	}
	return nil, spec.Errorf(spec.CodeEnv, "unknown verb %q", call.Verb)
}

// lock waits until no other ADD or DEL of the attachment runs. It does not wait for other
// attachments.
func (d *daemon) lock(ctx context.Context, owner spec.Attachment) (unlock func(), err error) {
	for {
		d.mu.Lock()
		other := d.busy[owner]
		if other == nil {
			done := make(chan struct{})
			d.busy[owner] = done
			d.mu.Unlock()
			return func() {
				d.mu.Lock()
				delete(d.busy, owner)
				d.mu.Unlock()
				close(done)
			}, nil
		}
		d.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, spec.Errorf(spec.CodeTryAgain, "another call for the interface runs: %w", ctx.Err())
		}
	}
}

// holder returns the holder of an attachment's leases; nil: it has none.
func (d *daemon) holder(owner spec.Attachment) *dhcp.Holder {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.holders[owner]
}

// setHolder requires the attachment's lock; nil removes the holder.
func (d *daemon) setHolder(owner spec.Attachment, h *dhcp.Holder) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if h == nil {
		delete(d.holders, owner)
	} else {
		d.holders[owner] = h
	}
}

// add returns the leases that the attachment has, or gets some. It first releases leases that have
// expired, or whose interface was replaced. A container must not take leases whose interface exists
// in another namespace.
func (d *daemon) add(ctx context.Context, call *call) ([]*dhcp.Lease, error) {
	unlock, err := d.lock(ctx, call.Attachment)
	if err != nil {
		return nil, err
	}
	defer unlock()
	store := &leaseStore{d.leases, call.Attachment}
	if h := d.holder(call.Attachment); h != nil {
		if h.Matches(call.Config) && store.Kept() && allValid(h.Leases()) {
			return h.Leases(), nil
		}
		if leases := h.Leases(); len(leases) > 0 && h.InOtherNS(call.Config) {
			return nil, spec.Duplicate(call.Attachment, leases[0].Address.Addr())
		}
		err := h.Release(ctx)
		d.setHolder(call.Attachment, nil)
		if err != nil {
			return nil, err
		}
	}
	h, err := d.acquire(ctx, call, store)
	var timeout *dhcp.TimeoutError
	switch {
	case errors.Is(err, dhcp.ErrGone):
		return nil, spec.Errorf(spec.CodeNetNS, "error calling DHCP.Allocate: %w", err)
	case errors.As(err, &timeout):
		return nil, spec.Errorf(spec.CodeTryAgain, "error calling DHCP.Allocate: no more tries").
			WithDetails("%s", strings.TrimPrefix(err.Error(), "no more tries: "))
	case err != nil:
		return nil, spec.Errorf(spec.CodeTryAgain, "error calling DHCP.Allocate: %w", err)
	}
	h.Keep()
	return h.Leases(), nil
}

// acquire gets leases from the servers, unless DEL is called meanwhile.
func (d *daemon) acquire(ctx context.Context, call *call, store *leaseStore) (*dhcp.Holder, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d.mu.Lock()
	d.adding[call.Attachment] = cancel
	d.mu.Unlock()
	h, err := dhcp.Acquire(ctx, call.Config, d.Settings, store)
	d.mu.Lock()
	delete(d.adding, call.Attachment)
	d.mu.Unlock()
	d.setHolder(call.Attachment, h) // h may be set even with an error
	return h, err
}

// allValid reports whether all leases are still valid.
func allValid(leases []*dhcp.Lease) bool {
	for _, l := range leases {
		if !l.Valid() {
			return false
		}
	}
	return len(leases) > 0
}

// del ends a running ADD, then releases the leases, if there are any.
func (d *daemon) del(ctx context.Context, owner spec.Attachment) error {
	d.mu.Lock()
	if cancel := d.adding[owner]; cancel != nil {
		cancel()
	}
	d.mu.Unlock()
	unlock, err := d.lock(ctx, owner)
	if err != nil {
		return err
	}
	defer unlock()
	h := d.holder(owner)
	if h == nil {
		return (&leaseStore{d.leases, owner}).Drop()
	}
	err = h.Release(ctx)
	d.setHolder(owner, nil)
	return err
}

// check returns the leases if they are valid and their interface exists. It does not wait for other
// calls.
func (d *daemon) check(call *call) ([]*dhcp.Lease, error) {
	h, name := d.holder(call.Attachment), call.Attachment.String()
	if h == nil || !(&leaseStore{d.leases, call.Attachment}).Kept() {
		return nil, spec.Errorf(spec.CodeCheck, "the DHCP daemon has no lease of %s", name)
	}
	if err := h.Check(); err != nil {
		return nil, spec.Errorf(spec.CodeCheck, "the lease of %s: %w", name, err)
	}
	for _, l := range h.Leases() {
		if !l.Valid() {
			return nil, spec.Errorf(spec.CodeCheck, "the lease of %s has expired, and no server renews it", l.Address.Addr())
		}
	}
	return h.Leases(), nil
}
