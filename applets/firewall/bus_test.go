package firewall_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/dbus/dbustest"
	"github.com/cnibox/cnibox/spec"
)

// The system bus is at DBUS_SYSTEM_BUS_ADDRESS, unless the configuration has an address. An invalid
// value is refused before the first change, and DEL ignores it.
func TestKernelFirewallBusAddress(t *testing.T) {
	h, socket := applettest.NewHost(t), dbustest.Bus(t)
	f := dbustest.Start(t, socket)
	p := h.Container("one")
	conf := func(keys string) string {
		return `{"cniVersion":"1.1.0","name":"demo","type":"firewall","backend":"firewalld",` + keys + `
			"prevResult":{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"}]}}`
	}
	escaped := strings.ReplaceAll(socket, "/", "%2f")
	for _, address := range []string{"unix:path=" + socket, "unix:path=/nowhere/bus;unix:abstract=none;unix:path=" + escaped + ",guid=00"} {
		env := spec.SystemBusEnv + "=" + address
		h.Must(spec.Add, "firewall", conf(""), p, env)
		if got := f.Sources(); got != "trusted 10.1.0.2/32" {
			t.Errorf("%s: added %q", address, got)
		}
		h.Must(spec.Check, "firewall", conf(""), p, env)
		h.Must(spec.Status, "firewall", conf(""), p, env)
		h.Must(spec.Del, "firewall", conf(""), p, env)
		if got := f.Sources(); got != "" {
			t.Errorf("%s: after DEL %q", address, got)
		}
	}
	h.Must(spec.Add, "firewall", conf(fmt.Sprintf(`"dbusSocket":%q,`, socket)), p, spec.SystemBusEnv+"=unix:path=/nowhere/bus")
	if got := f.Sources(); got != "trusted 10.1.0.2/32" {
		t.Errorf("the configuration's: added %q", got)
	}
	code, out := h.Call(spec.Add, "firewall", conf(""), p, spec.SystemBusEnv+"=tcp:host=a")
	if code != spec.CodeEnv || !strings.Contains(out, `DBUS_SYSTEM_BUS_ADDRESS`) || !strings.Contains(out, "tcp:host=a") {
		t.Errorf("no Unix socket: %d %s", code, out)
	}
	h.Must(spec.Del, "firewall", conf(fmt.Sprintf(`"dbusSocket":%q,`, socket)), p, spec.SystemBusEnv+"=x")
	h.Must(spec.Del, "firewall", conf(""), p, spec.SystemBusEnv+"=tcp:host=a")
	if got := f.Sources(); got != "" {
		t.Errorf("after DEL %q", got)
	}
}
