package e2e

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"cnibox/applets/applettest"
	"cnibox/internal/kerneltest"
	"cnibox/spec"
)

// mostCalls limits the system calls of the chain's ADD after it has read the configuration, with a
// few to spare.
const mostCalls = 268

// runtimeCalls are made by Go's runtime for threads and memory; they differ from run to run.
var runtimeCalls = regexp.MustCompile(`^(futex|epoll_|nanosleep|clock_nanosleep|tgkill|rt_sig|sched_yield|restart_syscall|exit|clone|gettid|getpid|sigaltstack|set_robust_list|rseq|mmap|munmap|mprotect|madvise|brk)`)

// TestKernelAddSystemCalls counts the system calls of an ADD by cni-exec of bridge with host-local, portmap
// and firewall: it opens the container's namespace once, looks up each program once, and opens one
// socket of each netlink protocol in each namespace.
func TestKernelAddSystemCalls(t *testing.T) {
	kerneltest.Slow(t)
	w := newWorld(t)
	w.write("net.d/once.conflist", `{"cniVersion": "1.1.0", "name": "once", "plugins": [
		{"type": "bridge", "bridge": "once0", "isGateway": true, "ipMasq": true, "ipam": {"type": "host-local", "dataDir": "$DIR/leases",
			"subnet": "10.99.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]}},
		{"type": "portmap", "dataDir": "$DIR/ports", "capabilities": {"portMappings": true}},
		{"type": "firewall"}]}`)
	add := func(c applettest.Container, port string) answer {
		return w.run("", nil, w.Path("bin/cni-exec"), "add", "once", c.Path, "--container-id", c.ID, "--conf-dir", w.Path("net.d"),
			"--cache-dir", w.Path("cni"), "-p", port+":80")
	}
	w.must("another ADD", add(w.Container("other"), "8001")) // makes the bridge and the tables
	c := w.Container("ctr")
	w.strace("-o", w.Path("trace"))
	w.must("ADD", add(c, "8002"))
	b, err := os.ReadFile(w.Path("trace"))
	if err != nil {
		t.Fatal(err)
	}
	all := 0
	times := map[string]int{}
	wanted := map[string]int{
		`openat(AT_FDCWD, "` + c.Path + `"`:                       1,
		`newfstatat(AT_FDCWD, "` + w.Path("bin/bridge") + `"`:     1,
		`newfstatat(AT_FDCWD, "` + w.Path("bin/host-local") + `"`: 1,
		`newfstatat(AT_FDCWD, "` + w.Path("bin/portmap") + `"`:    1,
		`newfstatat(AT_FDCWD, "` + w.Path("bin/firewall") + `"`:   1,
		`openat(AT_FDCWD, "/proc/thread-self/ns/net"`:             1,
		`SOCK_CLOEXEC, NETLINK_ROUTE`:                             2, // the host and the container
		`SOCK_CLOEXEC, NETLINK_NETFILTER`:                         1,
	}
	wake := "x" // a read or write of the event counter of Go's scheduler
	if m := regexp.MustCompile(`eventfd2\(.*= (\d+)`).FindSubmatch(b); m != nil {
		wake = "(" + string(m[1]) + ","
	}
	_, trace, _ := strings.Cut(string(b), w.Path("net.d")+`", O_RDONLY`)
	for line := range strings.Lines(trace) {
		_, call, _ := strings.Cut(line, " ")
		call = strings.TrimLeft(call, " ")
		if strings.HasPrefix(call, "<...") || !strings.Contains(call, "(") || runtimeCalls.MatchString(call) ||
			strings.HasPrefix(call, "read"+wake) || strings.HasPrefix(call, "write"+wake) {
			continue // the second part of a call, a signal, the end of a thread
		}
		all++
		for what := range wanted {
			if strings.Contains(call, what) {
				times[what]++
			}
		}
	}
	for what, want := range wanted {
		if times[what] != want {
			t.Errorf("%s: %d times, want %d", what, times[what], want)
		}
	}
	t.Logf("%d system calls", all)
	if all > mostCalls || all < 100 {
		t.Errorf("%d system calls, want at most %d:\n%s", all, mostCalls, trace)
	}
}

// ADD of host-local reads only its own lease directory: it needs the runtimes' attachments only if
// no address is free.
func TestKernelAddReadsOwnLeases(t *testing.T) {
	kerneltest.Slow(t)
	w := newWorld(t)
	c := w.Container("ctr")
	w.strace("-o", w.Path("trace"), "-e", "trace=%file")
	conf := w.Expand(`{"cniVersion":"1.1.0","name":"n","type":"bridge","ipam":{"type":"host-local","dataDir":"$DIR/leases","subnet":"10.1.0.0/24"}}`)
	w.must("ADD", w.run(conf, append(c.Env(spec.Add), spec.StateEnv+"="), w.Path("bin/host-local")))
	trace, err := os.ReadFile(w.Path("trace"))
	if err != nil || !strings.Contains(string(trace), w.Path("leases")) {
		t.Fatalf("%v: %s", err, trace)
	}
	for line := range strings.Lines(string(trace)) {
		if strings.Contains(line, `"/var/lib/cni`) || strings.Contains(line, `"/run/cnibox`) {
			t.Errorf("ADD looks elsewhere: %s", line)
		}
	}
}
