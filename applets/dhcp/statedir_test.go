package dhcp

import (
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applet"
	"github.com/cnibox/cnibox/spec"
)

// A plugin and a daemon with the same CNIBOX_STATE use the same socket. Leases are stored there.
func TestDHCPStateDir(t *testing.T) {
	tests := map[string]struct {
		state, conf, args string
		socket, leases    string // "": the daemon fails
	}{
		"default":    {"", "", "", "/run/cni/dhcp.sock", "/run/cni/dhcp-leases"},
		"state":      {"/s", "", "", "/s/dhcp.sock", "/s/dhcp-leases"},
		"configured": {"/s", `"daemonSocketPath":"/x/d.sock",`, "-socketpath /x/d.sock", "/x/d.sock", "/x/d-leases"},
		"relative":   {"s", "", "", "", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			getenv := func(k string) string { return map[string]string{"CNIBOX_STATE": tt.state}[k] }
			f, err := readFlags(applet.Process{Args: strings.Fields(tt.args), Getenv: getenv})
			if tt.socket == "" {
				if err == nil || !strings.Contains(err.Error(), `CNIBOX_STATE "s" is not an absolute path`) {
					t.Errorf("daemon: got %v", err)
				}
				return
			}
			if err != nil || f.socket != tt.socket {
				t.Errorf("daemon: got %+v, %v, want %s", f, err, tt.socket)
			}
			r, err := spec.NewRequest(spec.Call{Verb: spec.Del, ContainerID: "c", IfName: "eth0", StateDir: tt.state},
				[]byte(`{"cniVersion":"1.1.0","name":"n","type":"bridge","ipam":{`+tt.conf+`"type":"dhcp"}}`))
			if err != nil {
				t.Fatal(err)
			}
			if p, err := newPlugin(r); err != nil || p.socket != tt.socket || string(p.leases) != tt.leases {
				t.Errorf("plugin: got %+v, %v, want %s and %s", p, err, tt.socket, tt.leases)
			}
		})
	}
}
