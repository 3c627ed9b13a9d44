//go:build !no_dhcp

package applets

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/dhcp"
	"cnibox/internal/disk"
	"cnibox/internal/flock"
)

// dhcpFlags are the daemon's, as the reference has them. A flag may have one or two
// hyphens, and its value behind a "=" or as the next word.
type dhcpFlags struct {
	pidFile string // empty: none
	socket  string // the root is part of it
	listen  int    // a descriptor that is listening; 0: none, the socket is made
	dhcp.Settings
}

// dhcpDaemonMain runs the daemon until the context ends. It returns 0 then, 1 if it
// could not begin, and 2 for flags that it did not understand.
func dhcpDaemonMain(ctx context.Context, p Process) int {
	// One write a line, so lines stay whole.
	log := func(line string) { io.WriteString(p.Stderr, "cnibox dhcp daemon: "+line+"\n") }
	if len(p.Args) > 0 && isHelp(p.Args[0]) {
		a, _ := Lookup("dhcp")
		return writeHelp(a, p.Stdout)
	}
	f, err := readDHCPFlags(p)
	if err != nil {
		log(err.Error() + " (`cnibox help dhcp` tells the flags)")
		return 2
	}
	f.Log = log
	if err := f.run(ctx); err != nil {
		log(err.Error())
		return 1
	}
	return 0
}

// readDHCPFlags reads flags and the variables of socket activation, sd_listen_fds(3).
func readDHCPFlags(p Process) (*dhcpFlags, error) {
	f := &dhcpFlags{socket: dhcpSocket, Settings: dhcp.Settings{Timeout: 10 * time.Second, Pause: 62 * time.Second, Patience: 208 * time.Second}}
	for args := p.Args; len(args) > 0; {
		name, value, given := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(args[0], "-"), "-"), "=")
		if !strings.HasPrefix(args[0], "-") {
			return nil, fmt.Errorf("%q is no flag", args[0])
		}
		args = args[1:]
		switch {
		case given:
		case name == "broadcast":
			value = "true"
		case len(args) == 0:
			return nil, fmt.Errorf("flag -%s without a value", name)
		default:
			value, args = args[0], args[1:]
		}
		if err := f.set(name, value); err != nil {
			return nil, fmt.Errorf("flag -%s: %w", name, err)
		}
	}
	f.socket = f.Root + f.socket
	if err := checkDHCPSocket(f.socket); err != nil {
		return nil, fmt.Errorf("flag -socketpath: %w", err)
	}
	fds := p.Getenv("LISTEN_FDS")
	switch {
	case fds == "" || p.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()):
	case fds != "1":
		return nil, fmt.Errorf("the service manager hands over %s sockets, 1 is wanted", fds)
	default:
		f.listen = 3 // SD_LISTEN_FDS_START
		f.handedOver()
	}
	return f, nil
}

// handedOver takes the path of the socket from the kernel's list, proc_net(5): leases lie
// beside it, where plugins look for them. One that was made in another network namespace
// is not in the list; then the flag has to tell.
func (f *dhcpFlags) handedOver() {
	const longestList = 16 << 20 // bytes
	own, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.listen))
	if err != nil {
		return
	}
	list, _ := disk.Read("/proc/thread-self/net/unix", 0, longestList)
	for line := range strings.Lines(string(list)) {
		before, path, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " /")
		if ok && strings.HasSuffix(own, ":["+before[strings.LastIndexByte(before, ' ')+1:]+"]") {
			f.socket = "/" + path
			return
		}
	}
}

// set reads one flag.
func (f *dhcpFlags) set(name, value string) (err error) {
	var d *time.Duration
	switch name {
	case "pidfile":
		if f.pidFile = value; !filepath.IsAbs(value) {
			return fmt.Errorf("%q is not an absolute path", value)
		}
	case "hostprefix":
		f.Root = strings.TrimSuffix(value, "/")
	case "socketpath":
		f.socket = value
	case "broadcast":
		f.Broadcast, err = strconv.ParseBool(value)
	case "timeout":
		d = &f.Timeout
	case "resendmax":
		d = &f.Pause
	case "resendtimeout":
		d = &f.Patience
	default:
		return errors.New("there is none")
	}
	if d == nil {
		return err
	}
	if *d, err = time.ParseDuration(value); err == nil && *d <= 0 {
		err = fmt.Errorf("%s is not above 0", value)
	}
	return err
}

// lockTime is how long a daemon waits for the one before it to end.
const lockTime = 5 * time.Second

// run does all of it. Of two daemons for the same leases the second one fails.
func (f *dhcpFlags) run(ctx context.Context) error {
	leases := dhcpLeases(f.socket)
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
	l, err := f.listener()
	if err != nil {
		return err
	}
	defer l.Close()
	if f.listen == 0 {
		defer os.Remove(f.socket)
	}
	if f.pidFile != "" {
		if err := records(filepath.Dir(f.pidFile)).replace(filepath.Base(f.pidFile), []byte(strconv.Itoa(os.Getpid())+"\n")); err != nil {
			return fmt.Errorf("pid file: %w", err)
		}
		defer os.Remove(f.pidFile)
	}
	d := &dhcpDaemon{Settings: f.Settings, leases: leases, held: map[recordOwner]*dhcpHeld{}}
	d.takeUp()
	f.Log("listening at " + f.socket)
	return d.accept(ctx, l)
}

// listener returns the socket that was handed over, or makes one.
func (f *dhcpFlags) listener() (*os.File, error) {
	if f.listen == 0 {
		return listenUnix(f.socket)
	}
	listening, err := unix.GetsockoptInt(f.listen, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil || listening == 0 {
		return nil, fmt.Errorf("descriptor %d of the service manager is no listening socket: %v", f.listen, err)
	}
	unix.CloseOnExec(f.listen)
	if err := unix.SetNonblock(f.listen, true); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(f.listen), f.socket), nil
}

// backlog is how many calls may wait to be taken.
const backlog = 512

// listenUnix makes the socket, for its owner alone from its first moment. One that is
// there and that nobody listens at is a dead daemon's, and goes.
func listenUnix(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("directory of the socket: %w", err)
	}
	conn, err := dialUnix(path)
	if err == nil {
		conn.Close()
		return nil, fmt.Errorf("another DHCP daemon listens at %s: stop it first", path)
	}
	if st, serr := os.Lstat(path); errors.Is(err, unix.ECONNREFUSED) && serr == nil && st.Mode()&os.ModeSocket != 0 {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	err = unix.Fchmod(fd, 0o600) // before bind it decides the file's mode: unix(7)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: path})
	}
	if err == nil {
		err = unix.Listen(fd, backlog)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// accept takes calls until the context ends, and then waits for those that run.
func (d *dhcpDaemon) accept(ctx context.Context, l *os.File) error {
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { l.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	defer d.end()
	for {
		fd := -1
		rerr := raw.Read(func(s uintptr) bool {
			// unix.Accept4 brings the addresses of all families along, 12 KB.
			n, _, errno := unix.Syscall6(unix.SYS_ACCEPT4, s, 0, 0, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
			if fd, err = int(n), nil; errno != 0 {
				fd, err = -1, errno
			}
			return errno != unix.EAGAIN
		})
		switch {
		case ctx.Err() != nil:
			if fd >= 0 {
				unix.Close(fd)
			}
			return nil
		case rerr != nil:
			return fmt.Errorf("accept: %w", rerr)
		case errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM):
			d.Log(err.Error())
			waitFor(ctx, time.Second) // until some are closed
		case err == nil:
			d.calls.Add(1)
			go d.serve(ctx, os.NewFile(uintptr(fd), "call"))
		}
	}
}

// waitFor waits for a time, or until the context ends.
func waitFor(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
