package portmap_test

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/spec"
)

// ADD warns of a port on which a process of the host listens, and publishes it.
func TestKernelPortmapWarnsOfListeners(t *testing.T) {
	n := newBridged(t)
	n.Listen(n.C1.NS, "one")
	n.Listen(n.NS, "host's own") // TCP and UDP port 80, both families
	var stderr bytes.Buffer
	n.Stderr = &stderr
	conf := func(port int, ip string) string {
		return fmt.Sprintf(`{"cniVersion":"1.1.0","name":"net1","type":"portmap","dataDir":"$DIR/records","runtimeConfig":{"portMappings":[{"hostPort":%d,"containerPort":80,"hostIP":%q}]},
			"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":%q}],"ips":[{"address":"10.9.0.11/24","interface":0}]}}`, port, ip, n.C1.Path)
	}
	n.Must(spec.Add, "portmap", conf(8080, ""), n.C1)
	n.Must(spec.Add, "portmap", conf(80, "::"), n.C1) // no container address of this family
	if stderr.Len() > 0 {
		t.Errorf("free ports: %s", &stderr)
	}
	n.Must(spec.Add, "portmap", conf(80, ""), n.C1)
	for _, want := range []string{"tcp 0.0.0.0:80: ", fmt.Sprintf("(pid %d) listens", os.Getpid())} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("no %q in %s", want, &stderr)
		}
	}
	if got := n.Ask(n.Outside, "tcp", "192.0.2.1:80"); got != "one 192.0.2.2" {
		t.Errorf("the port leads to %q", got)
	}
}
