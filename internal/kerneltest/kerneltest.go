// Package kerneltest gives tests network namespaces of their own in the real
// kernel. It is for tests only. A namespace takes less than a millisecond, so each test
// has its own and all may run at once.
package kerneltest

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/rtnl"
)

// The main goroutine keeps the first thread: a namespace made on that thread
// would stay with the process, since the first thread cannot end.
func init() { runtime.LockOSThread() }

// required reports whether a missing privilege fails the test; make test sets the variable.
func required() bool { return os.Getenv("CNIBOX_KERNEL") == "require" }

// OneUser reports whether this is root of a user namespace that maps one user only, as when an
// ordinary user runs make test: there is no chown, and no capability over the machine.
func OneUser() bool {
	b, _ := os.ReadFile("/proc/self/uid_map")
	fields := strings.Fields(string(b))
	return len(fields) == 3 && fields[2] == "1"
}

// slowness returns CNIBOX_SLOW, the factor by which this machine is slower than usual; 1 if it is
// not set.
func slowness() time.Duration {
	n, err := strconv.Atoi(os.Getenv("CNIBOX_SLOW"))
	if err != nil || n < 1 {
		return 1
	}
	return time.Duration(n)
}

// Emulated reports whether the processor is emulated, so that measured times mean nothing.
func Emulated() bool { return slowness() > 1 }

// Timeout scales d, the timeout for a slow machine, for this one, whose processor may be emulated.
func Timeout(d time.Duration) time.Duration { return slowness() * d }

// Eventually calls condition until it returns nil. After three minutes the test fails with its error; a
// busy machine may stall for nearly as long.
func Eventually(t testing.TB, what string, condition func() error) {
	t.Helper()
	timeout := Timeout(3 * time.Minute)
	err := condition()
	for end := time.Now().Add(timeout); err != nil && time.Now().Before(end); err = condition() {
		time.Sleep(2 * time.Millisecond)
	}
	if err != nil {
		t.Fatalf("%s: not within %s: %v", what, timeout, err)
	}
}

// Until is [Eventually] for a condition without an error.
func Until(t testing.TB, what string, condition func() bool) {
	t.Helper()
	Eventually(t, what, func() error {
		if condition() {
			return nil
		}
		return errors.New("not yet")
	})
}

// inherited are IPv4 settings of a new namespace as the kernel has them, which copies them from the machine's first
// namespace: there Docker, kube-proxy and distributions set others.
var inherited = []netns.Sysctl{
	{Key: "net/ipv4/ip_forward", Value: "0", Optional: true},
	{Key: "net/ipv4/conf/all/rp_filter", Value: "0", Optional: true},
	{Key: "net/ipv4/conf/default/rp_filter", Value: "0", Optional: true},
	{Key: "net/ipv4/conf/all/route_localnet", Value: "0", Optional: true},
}

// NS creates a network namespace for the test, with only lo, which is down.
// Without the privilege the test is skipped, or fails if CNIBOX_KERNEL=require.
func NS(t testing.TB) *netns.NS {
	t.Helper()
	ns, err := NewNS()
	if errors.Is(err, os.ErrPermission) && !required() {
		t.Skipf("SKIPPED: no network namespace without CAP_SYS_ADMIN (root or a user namespace): %v", err)
	}
	if err != nil {
		t.Fatalf("network namespace: %v", err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}

// NewNS creates a network namespace whose settings do not depend on the machine's.
func NewNS() (*netns.NS, error) {
	ns, err := netns.New()
	if err != nil {
		return nil, err
	}
	if err := ns.SetSysctls(inherited...); err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	return ns, nil
}

// LoUp sets lo up, without which a namespace does not reach its own addresses.
func LoUp(t testing.TB, ns *netns.NS) {
	t.Helper()
	setLo(t, ns, true)
}

// LoDown sets lo down, as it is in a new namespace and after DEL of loopback.
func LoDown(t testing.TB, ns *netns.NS) {
	t.Helper()
	setLo(t, ns, false)
}

func setLo(t testing.TB, ns *netns.NS, up bool) {
	t.Helper()
	Brief(t, ns, func(c *rtnl.Conn) error {
		lo, err := c.Link("lo")
		if err != nil {
			return err
		}
		return c.SetLink(lo.Index, rtnl.LinkChange{Up: &up})
	})
}

// Brief calls fn with a socket in a namespace and closes it: an open socket keeps the namespace
// alive.
func Brief(t testing.TB, ns *netns.NS, fn func(*rtnl.Conn) error) {
	t.Helper()
	c, err := rtnl.Dial(ns)
	if err == nil {
		err = errors.Join(fn(c), c.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Tool runs a program in a namespace, and returns what it writes to stdout and stderr. The test is
// skipped if the program is not installed.
func Tool(t testing.TB, ns *netns.NS, stdin, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	if errors.Is(cmd.Err, exec.ErrNotFound) {
		t.Skipf("SKIPPED: %s is not installed", name)
	}
	cmd.Stdin = strings.NewReader(stdin)
	var out []byte
	err := ns.Do(func() (err error) {
		out, err = cmd.CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
	return string(out)
}

// Dial opens a socket in ns until the test ends.
func Dial(t testing.TB, ns *netns.NS) *rtnl.Conn {
	t.Helper()
	c, err := rtnl.Dial(ns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// NSPath returns a path of the namespace that is valid as CNI_NETNS in this process and its children
// until the test ends. It is a bind mount, like those of ip-netns(8), or if mounting is not allowed a
// file in /proc of this process.
func NSPath(t testing.TB, ns *netns.NS) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "netns")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fd := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.FD())
	err := unix.Mount(fd, path, "", unix.MS_BIND, "")
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) {
		return fd
	}
	if err != nil {
		t.Fatalf("bind mount of a network namespace: %v", err)
	}
	t.Cleanup(func() {
		err := unix.Unmount(path, unix.MNT_DETACH)
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) { // the test has done so
			t.Errorf("unmount %s: %v", path, err)
		}
	})
	return path
}

// Solicited waits until a namespace has joined the solicited-node multicast group of an IPv6
// address on at least so many links. The kernel joins it after the address can be used: a
// neighbour that solicits before that waits for a second, or gets no answer.
func Solicited(t testing.TB, ns *netns.NS, addr netip.Addr, links int) {
	t.Helper()
	b := addr.As16()
	group := fmt.Sprintf("ff0200000000000000000001ff%x", b[13:])
	Eventually(t, "multicast group of "+addr.String(), func() error {
		var groups []byte
		err := ns.Do(func() (err error) {
			groups, err = os.ReadFile("/proc/thread-self/net/igmp6")
			return err
		})
		if got := strings.Count(string(groups), group); err == nil && got < links {
			err = fmt.Errorf("%d of %d links are in %s", got, links, group)
		}
		return err
	})
}

// Need skips the test if the kernel lacks a feature, named as in the kernel's configuration
// (CONFIG_BRIDGE_VLAN_FILTERING), or if the user may not use it. Any other error of the probe fails
// the test.
func Need(t testing.TB, feature string, probe func() error) {
	t.Helper()
	err := probe()
	switch {
	case err == nil:
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPROTONOSUPPORT),
		errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, errors.ErrUnsupported),
		errors.Is(err, os.ErrNotExist):
		lacks(t, feature, err)
	case errors.Is(err, unix.EACCES): // which root never gets
		t.Skipf("SKIPPED: this user may not use %s: %v", strings.TrimSpace(feature), err)
	default:
		t.Fatalf("probe for %s: %v", feature, err)
	}
}

// Cookie returns the cookie of a namespace, see [netns.NS.Cookie], and skips the test if the kernel has
// none.
func Cookie(t testing.TB, ns *netns.NS) (cookie uint64) {
	t.Helper()
	Need(t, "SO_NETNS_COOKIE (Linux 5.14)", func() (err error) {
		if cookie, err = ns.Cookie(); err == nil && cookie == 0 {
			err = unix.EOPNOTSUPP
		}
		return err
	})
	return cookie
}

// NeedKind is [Need] for a kind of link; feature is the option of its driver.
func NeedKind(t testing.TB, feature string, kind rtnl.Kind) {
	t.Helper()
	Need(t, feature, func() error {
		c := Dial(t, NS(t))
		low, err := c.CreateLink(rtnl.LinkSpec{Name: "low", Peer: &rtnl.LinkSpec{Name: "wire"}})
		if err != nil {
			return err
		}
		return c.AddLink(rtnl.LinkSpec{Name: "probe", Kind: kind, Parent: low.Index})
	})
}
