package portmap_test

import (
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/spec"
)

// A published port leaves [::1] alone: a connection is refused at once, or reaches the host's own listener.
// A mapping of ::1 is refused by ADD alone.
func TestKernelPortmapLeavesLoopback6(t *testing.T) {
	n := newBridged(t)
	n.NoError(n.Publish(spec.Add, "c1", anyPort))
	n.Listen(n.C1.NS, "one")
	if got := n.Ask(n.NS, "tcp", "[fd00:9::1]:8080"); got != "one fd00:9::1" {
		t.Errorf("an address of the host leads to %q", got)
	}
	if _, err := applettest.Connect(n.NS, "tcp", "[::1]:8080", 3*time.Second); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("without a listener: %v, want a refused connection", err)
	}
	var l net.Listener
	n.NoError(n.NS.Do(func() (err error) { l, err = net.Listen("tcp", "[::1]:8080"); return err }))
	defer l.Close()
	c, err := applettest.Connect(n.NS, "tcp", "[::1]:8080", 3*time.Second)
	if err != nil {
		t.Fatalf("the host's listener: %v", err)
	}
	c.Close()
	const local = `{"hostPort":8081,"containerPort":80,"hostIP":"::1"}`
	n.WantError(n.Publish(spec.Add, "c2", local), spec.CodeConfig, "runtimeConfig.portMappings[0].hostIP: no port can be published on ::1")
	for _, verb := range []spec.Verb{spec.Check, spec.Restore, spec.Del} {
		n.NoError(n.Publish(verb, "c2", local))
	}
}
