package e2e

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/fault"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/spec"
	"github.com/cnibox/cnibox/test/product"
)

// Variables by which the tests control an applet: the number of the change, from 1, at which it
// kills itself, by which signal (default SIGKILL), and the file to list its changes in.
const (
	killAt      = "CNIBOX_TEST_KILL_AT"
	killBy      = "CNIBOX_TEST_KILL_BY"
	listChanges = "CNIBOX_TEST_CHANGES"
)

func TestMain(m *testing.M) { product.Main(m, armFaults) }

// armFaults makes this applet process act on those variables.
func armFaults() {
	if at := os.Getenv(failSetns); at != "" {
		armSetns(at)
	}
	at, _ := strconv.Atoi(os.Getenv(killAt))
	by, _ := strconv.Atoi(os.Getenv(killBy))
	list := os.Getenv(listChanges)
	if at == 0 && list == "" {
		return
	}
	var n atomic.Int64
	fault.Hook = func(what string) error {
		now := n.Add(1) == int64(at)
		if now && by != 0 && by != int(syscall.SIGKILL) {
			return syscall.Kill(os.Getpid(), syscall.Signal(by))
		}
		if now {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // SIGKILL may reach this thread last
		}
		if list == "" {
			return nil
		}
		f, err := os.OpenFile(list, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
		if err == nil {
			_, err = fmt.Fprintln(f, what)
			err = errors.Join(err, f.Close())
		}
		return err
	}
}

const killConf = `{"cniVersion":"1.1.0","name":"demo","type":"bridge","bridge":"br0","isDefaultGateway":true,"ipMasq":true,
	"macspoofchk":true,"hairpinMode":true,"ipam":{"type":"host-local","dataDir":"$DIR/leases",
	"ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]],"routes":[{"dst":"10.9.0.0/16"}]}}`

const killList = `{"cniVersion":"1.1.0","name":"demo","plugins":[` + killConf + `,
	{"type":"portmap","capabilities":{"portMappings":true},"dataDir":"$DIR/ports"},
	{"type":"tuning","dataDir":"$DIR/tuning","mtu":1400,"promisc":true,"sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1"}}]}`

// A victim is a program to kill: its ADD and its DEL.
type victim struct {
	add, del func(w *world, c applettest.Container, port int, env ...string) answer
}

var victims = map[string]victim{
	"bridge": {
		func(w *world, c applettest.Container, _ int, env ...string) answer {
			return w.plugin(spec.Add, "bridge", killConf, c, env...)
		},
		func(w *world, c applettest.Container, _ int, env ...string) answer {
			return w.plugin(spec.Del, "bridge", killConf, c, env...)
		},
	},
	"cni-exec": {
		func(w *world, c applettest.Container, port int, env ...string) answer {
			udp := fmt.Sprintf("%d:53/udp", port)
			return w.run("", env, w.Path("bin/cni-exec"), "add", "demo", c.Path, "--container-id", c.ID, "--conf-dir", w.Path("net.d"),
				"--cache-dir", w.Path("cni"), "-o", "json", "-p", fmt.Sprintf("%d:80", port), "-p", udp)
		},
		func(w *world, c applettest.Container, _ int, env ...string) answer {
			argv := []string{w.Path("bin/cni-exec"), "del", "demo", "--container-id", c.ID, "--conf-dir", w.Path("net.d"), "--cache-dir", w.Path("cni"), "-o", "json"}
			if c.Path != "" {
				argv = append(argv, c.Path)
			}
			return w.run("", env, argv...)
		},
	},
}

// killLanes is how many hosts share the work, which is mostly waiting for the kernel to delete
// links.
const killLanes = 3

// every returns the step from one kill to the next. Without FULL=1 it is three times as long.
func every(step int) int {
	if kerneltest.Full() {
		return step
	}
	return 3 * step
}

// TestKernelKilled kills ADD, and then DEL, before each of their changes, or every third. The next DEL, with or
// without the namespace, restores the state from before, and the next ADD succeeds at once.
func TestKernelKilled(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	for name, v := range victims {
		t.Run(name, func(t *testing.T) {
			adds, dels := v.changes(t)
			if len(adds) < 10 || len(dels) < 3 {
				t.Fatalf("the changes are %q and %q", adds, dels)
			}
			t.Logf("ADD: %q\nDEL: %q", adds, dels)
			for lane := range killLanes {
				t.Run(strconv.Itoa(lane), func(t *testing.T) {
					t.Parallel()
					v.kill(t, adds, dels, lane)
					if name == "bridge" { // the host keeps only its own bridge and rules
						v.killFirst(t, lane)
					}
				})
			}
		})
	}
}

// host makes a world with another container, which shares the bridge and the tables.
func (v victim) host(t *testing.T) (*world, applettest.Container) {
	t.Helper()
	w := newWorld(t)
	w.write("net.d/demo.conflist", killList)
	w.must("other ADD", v.add(w, w.Container("other"), 8000))
	return w, w.Container("ctr")
}

// changes lists the changes of ADD and DEL.
func (v victim) changes(t *testing.T) (adds, dels []string) {
	t.Helper()
	w, c := v.host(t)
	w.must("ADD", v.add(w, c, 8080, listChanges+"="+w.Path("adds")))
	w.must("DEL", v.del(w, c, 8080, listChanges+"="+w.Path("dels")))
	for file, into := range map[string]*[]string{"adds": &adds, "dels": &dels} {
		b, err := os.ReadFile(w.Path(file))
		if err != nil {
			t.Fatal(err)
		}
		*into = strings.Split(strings.TrimSpace(string(b)), "\n")
	}
	return adds, dels
}

// kill takes every killLanes-th change of ADD from that of its lane, each with one of DEL.
func (v victim) kill(t *testing.T, adds, dels []string, lane int) {
	w, c := v.host(t)
	before := w.Snapshot(c)
	for n := lane; n < max(len(adds), len(dels)); n += every(killLanes) {
		again := c
		if n/killLanes%2 == 1 {
			again.Path = "" // the runtime does not know it any more
		}
		for _, do := range []func() string{
			func() string { return v.killAdd(w, c, n%len(adds), adds) },
			func() string { return v.killDel(w, c, n%len(dels), dels) },
		} {
			what := do() + ", then DEL"
			w.must(what, v.del(w, again, 8080))
			w.Same(what, before, w.Snapshot(c))
		}
	}
}

// killPoints maps system calls at which a process is killed to the step between two kills: there
// are some hundred calls, and each kill takes a while.
var killPoints = map[string]int{
	"write": 3, "openat": 5, "pwrite64": 1, "linkat": 1, "renameat": 1, "unlinkat": 1, "mkdirat": 1, "flock": 1, "setns": 1,
}

// TestKernelKilledAnywhere kills ADD between the changes that the hook sees, at system calls.
func TestKernelKilledAnywhere(t *testing.T) {
	kerneltest.Slow(t)
	t.Parallel()
	if testing.Short() {
		t.Skip("SKIPPED: it takes a while")
	}
	v := victims["cni-exec"]
	for call, step := range killPoints {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			w, c := v.host(t)
			w.strace() // or no test
			before := w.Snapshot(c)
			for n := 1; ; n += every(step) {
				w.strace("-o", "/dev/null", "-e", "trace="+call, "-e", fmt.Sprintf("inject=%s:signal=KILL:when=%d", call, n))
				a := v.add(w, c, 8080)
				w.tracer = nil
				what := fmt.Sprintf("ADD killed at %s %d, then DEL", call, n)
				w.must(what, v.del(w, c, 8080))
				w.Same(what, before, w.Snapshot(c))
				if a.exit == 0 && n == 1 {
					t.Error("ADD was not killed: there is nothing to test")
				}
				if a.exit == 0 {
					break // no thread makes that many
				}
			}
		})
	}
}

// killFirst kills the first ADD on a host. What it has made for all attachments stays, and the next
// ADD must work with it.
func (v victim) killFirst(t *testing.T, lane int) {
	for n := lane; ; n += every(killLanes) {
		w := newWorld(t)
		w.write("net.d/demo.conflist", killList)
		c := w.Container("ctr")
		bare, files := kerneltest.Snapshot(t, c.NS), w.Stored()
		a := v.add(w, c, 8080, fmt.Sprintf("%s=%d", killAt, n+1))
		what := fmt.Sprintf("first ADD killed at change %d", n+1)
		w.must(what+", then DEL", v.del(w, c, 8080))
		w.Same(what, files+bare, w.Stored()+kerneltest.Snapshot(t, c.NS))
		w.must(what+", next ADD", v.add(w, c, 8080))
		w.must(what+", DEL of the next", v.del(w, c, 8080))
		w.Same(what+", DEL of the next", files+bare, w.Stored()+kerneltest.Snapshot(t, c.NS))
		if a.exit != -1 {
			return
		}
	}
}

// killAdd kills an ADD at its nth change.
func (v victim) killAdd(w *world, c applettest.Container, n int, changes []string) string {
	w.Helper()
	what := fmt.Sprintf("ADD killed at change %d, %q", n+1, changes[n])
	if a := v.add(w, c, 8080, fmt.Sprintf("%s=%d", killAt, n+1)); a.exit != -1 {
		w.Errorf("%s: exit code %d: %s%s", what, a.exit, a.stdout, a.stderr)
	}
	return what
}

// killDel makes an attachment and kills its DEL at its nth change.
func (v victim) killDel(w *world, c applettest.Container, n int, changes []string) string {
	w.Helper()
	w.must("next ADD", v.add(w, c, 8080))
	what := fmt.Sprintf("DEL killed at change %d, %q", n+1, changes[n])
	if a := v.del(w, c, 8080, fmt.Sprintf("%s=%d", killAt, n+1)); a.exit != -1 {
		w.Errorf("%s: exit code %d: %s%s", what, a.exit, a.stdout, a.stderr)
	}
	return what
}
