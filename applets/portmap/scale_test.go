package portmap_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/fault"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/spec"
)

// manyPorts maps n host ports up to 59999 to the same ports of the container, except that the last
// of each thousand leads to port 80.
func manyPorts(n int, protocol string) string {
	var b strings.Builder
	for p := 60000 - n; p < 60000; p++ {
		to := p
		if p%1000 == 999 {
			to = 80
		}
		fmt.Fprintf(&b, `,{"hostPort":%d,"containerPort":%d,"protocol":%q}`, p, to, protocol)
	}
	return b.String()[1:]
}

// needSendSpace skips the test in a user namespace, where net.core.wmem_max limits the size of a
// transaction.
func needSendSpace(n *bridged) {
	n.Helper()
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	n.NoError(err)
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 1<<20); err != nil {
		n.Skipf("SKIPPED: thousands of ports in one transaction: SO_SNDBUFFORCE: %v", err)
	}
}

// RTP servers publish thousands of ports. They are one transaction, messages are in proportion to them, and each
// port works.
func TestKernelPortmapThousands(t *testing.T) {
	kerneltest.OneKernel(t)
	const few, many = 2000, 10000
	work := map[string]map[fault.Work]int{}
	for _, count := range []int{few, many} {
		n := newBridged(t)
		needSendSpace(n)
		n.Listen(n.C1.NS, "one")
		ports := manyPorts(count, "udp")
		for _, v := range []spec.Verb{spec.Add, spec.Check, spec.Del} {
			work[fmt.Sprint(v, count)] = fault.Count(func() { n.NoError(n.Publish(v, "c1", ports)) })
			if v != spec.Add {
				continue
			}
			owned, err := nft.Open(n.NS).Owned(spec.Attachment{Network: "net1", ContainerID: "c1", IfName: "eth0"})
			// Per family: an element for each port, and one for each masqueraded port, with port 80
			// counted once
			if want := 2*count + 2*(count-count/1000+1); err != nil || len(owned) != want {
				t.Errorf("%d ports: %d elements, want %d; %v", count, len(owned), want, err)
			}
			for p := 59999; p > 60000-count; p -= 1000 {
				for _, to := range []string{"192.0.2.1", "[fd00:2::1]"} {
					if got := n.Ask(n.Outside, "udp", fmt.Sprint(to, ":", p)); !strings.HasPrefix(got, "one ") {
						t.Errorf("%d ports: %s:%d: %q", count, to, p, got)
					}
				}
			}
		}
		if got := n.elements(); got != "\nfiles " {
			t.Errorf("%d ports: after DEL: %.200s", count, got)
		}
	}
	for _, v := range []spec.Verb{spec.Add, spec.Check, spec.Del} {
		small, big := work[fmt.Sprint(v, few)], work[fmt.Sprint(v, many)]
		t.Logf("%s: %d ports %v, %d ports %v", v, few, small, many, big)
		for what, n := range big {
			if n*few > small[what]*many {
				t.Errorf("%s: %d %s for %d ports, %d for %d", v, small[what], what, few, n, many)
			}
		}
		if v != spec.Check && big[fault.Transactions] != 1 {
			t.Errorf("%s: %d transactions", v, big[fault.Transactions])
		}
	}
}

// With thousands of ports, an ADD that is refused for one of them changes nothing, even if it is a
// second ADD. The ports of a gone container are transferred. For another network of the container
// they are pending until DEL of the first.
func TestKernelPortmapThousandsOwned(t *testing.T) {
	const count = 2000
	n := newBridged(t)
	needSendSpace(n)
	n.Listen(n.C1.NS, "one")
	n.Listen(n.C2.NS, "two")
	ports := manyPorts(count, "tcp")
	n.NoError(n.Publish(spec.Add, "c2", `{"hostPort":58001,"containerPort":80}`))
	for range 2 {
		before := n.elements()
		if err := n.Publish(spec.Add, "c1", ports); err == nil || spec.AsError(err).Code != spec.CodeBusy {
			t.Fatalf("a port that is taken: %v", err)
		}
		if after := n.elements(); after != before {
			t.Errorf("a refused ADD changed %.300s to %.300s", before, after)
		}
		n.NoError(n.Publish(spec.Add, "c1", applettest.BothProtocols)) // replaced by the second ADD
	}
	n.NoError(n.Publish(spec.Del, "c2", ""))
	n.NoError(n.Publish(spec.Add, "c1", ports))
	n.NoError(n.Publish(spec.Add, "c1", ports))
	n.NoError(n.Publish(spec.Check, "c1", ports))
	if got := n.Ask(n.Outside, "tcp", "192.0.2.1:8080"); got != "no answer" {
		t.Errorf("port of the first ADD: %q", got)
	}
	if err := n.Publish(spec.Check, "c1", manyPorts(count+100, "tcp")); err == nil || len(err.Error()) > 4000 {
		t.Errorf("CHECK of ports that are not there: %.200v", err)
	}
	second := func(v spec.Verb) {
		t.Helper()
		_, err := n.Do(v, "portmap", spec.Call{ContainerID: "c1", IfName: "eth1", NetNS: n.C1.Path},
			`"runtimeConfig":{"portMappings":[`+ports+`]}`, `{"cniVersion":"1.1.0","ips":[{"address":"10.9.0.12/24"},{"address":"fd00:9::12/64"}]}`)
		n.NoError(err)
	}
	second(spec.Add)
	n.NoError(n.Publish(spec.Del, "c1", ports))
	second(spec.Check)
	for _, from := range []string{"192.0.2.1", "[fd00:2::1]"} {
		if got := n.Ask(n.Outside, "tcp", from+":58999"); !strings.HasPrefix(got, "two ") {
			t.Errorf("after DEL of the first network: %q", got)
		}
	}
	second(spec.Del)
	n.NoError(n.Publish(spec.Add, "c1", ports))
	n.NoError(os.Remove(n.C1.Path))
	n.NoError(n.Publish(spec.Add, "c2", ports))
	if got := n.Ask(n.Outside, "tcp", "192.0.2.1:58999"); !strings.HasPrefix(got, "two ") {
		t.Errorf("taken over: %q", got)
	}
	n.Result(n.Do(spec.GC, "portmap", spec.Call{}, `"cni.dev/valid-attachments":[]`, ""))
	if got := n.elements(); got != "\nfiles " {
		t.Errorf("after GC: %.200s", got)
	}
}

// Thousands of ports are one batch: if the kernel refuses it, no port is published.
func TestKernelPortmapThousandsFail(t *testing.T) {
	n := newBridged(t)
	needSendSpace(n)
	ports := manyPorts(1000, "tcp")
	batches := applettest.EachFault(t, "nft batch", func() error { return n.Publish(spec.Add, "c1", ports) }, func(change string, err error) {
		if err == nil || n.elements() != "\nfiles " {
			t.Fatalf("%s failed: %v, and left %.300s", change, err, n.elements())
		}
	})
	if batches != 1 {
		t.Errorf("ADD made %d batches", batches)
	}
}

// All ports from 1 to 65535 in one ADD.
func TestKernelPortmapAllPorts(t *testing.T) {
	kerneltest.Slow(t)
	if testing.Short() {
		t.Skip("SKIPPED: -short: each port at once takes long")
	}
	n := newBridged(t)
	needSendSpace(n)
	n.Listen(n.C1.NS, "one")
	var b strings.Builder
	for p := 1; p < 1<<16; p++ {
		fmt.Fprintf(&b, `,{"hostPort":%d,"containerPort":%d,"protocol":"tcp","hostIP":""}`, p, 80+p%2*(p-80))
	}
	ports := b.String()[1:]
	n.NoError(n.Publish(spec.Add, "c1", ports))
	for _, to := range []string{"192.0.2.1:2", "[fd00:2::1]:65534", "192.0.2.1:40000"} {
		if got := n.Ask(n.Outside, "tcp", to); !strings.HasPrefix(got, "one ") {
			t.Errorf("%s: %q", to, got)
		}
	}
	n.NoError(n.Publish(spec.Check, "c1", ports))
	n.NoError(n.Publish(spec.Del, "c1", ""))
	if got := n.elements(); got != "\nfiles " {
		t.Errorf("after DEL: %.200s", got)
	}
}
