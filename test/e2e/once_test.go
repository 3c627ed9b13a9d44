package e2e

import (
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/fault"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/spec"
)

// TestKernelAddOnce counts what an ADD by cni-exec of bridge with host-local, portmap and firewall does: it opens
// the container's namespace once, looks up each program once, opens one socket of each netlink protocol in each
// namespace, and reads nothing twice.
func TestKernelAddOnce(t *testing.T) {
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
	got := w.measured(func() { w.must("ADD", add(c, "8002")) }).Work
	t.Log(got)
	got[fault.Requests] -= got[fault.Waits] // until the link is up
	for _, work := range []fault.Work{fault.Waits, fault.Answers, fault.Received, fault.Bytes} {
		delete(got, work)
	}
	want := map[fault.Work]int{
		fault.Namespaces: 1, fault.Lookups: 4, fault.Transactions: 1, fault.Requests: 48, fault.Changes: 20,
		fault.Sockets: 5, // of route netlink on the host and in the container, of nf_tables, and two to see who listens
		fault.Threads: 2, fault.Files: 10, fault.Lists: 2, fault.Names: 1, fault.Locks: 3,
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
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
