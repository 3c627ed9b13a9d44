//go:build !no_dhcp

package e2e

import (
	"strings"
	"syscall"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/spec"
	"github.com/cnibox/cnibox/test/dhcptest"
)

// GET asks the daemon, with and without prevResult: without a record of a lease the container is
// unknown; a daemon that does not answer is an error.
func TestKernelDHCPGet(t *testing.T) {
	t.Parallel()
	w := newDHCPWorld(t)
	s := dhcptest.Start4(t, w.server)
	d := w.daemon()
	c := w.Container("ctr")
	out := w.must("ADD", w.plugin(spec.Add, "bridge", dhcpConf, c))
	alone := strings.Replace(dhcpConf, `"bridge"`, `"dhcp"`, 1)
	get := func(when string, code int) {
		t.Helper()
		for _, conf := range []string{dhcpConf, withPrev(dhcpConf, out), alone, withPrev(alone, out)} {
			if a := w.plugin(spec.Get, strings.Split(conf, `"`)[11], conf, c); a.code(t) != code || code == 0 && !strings.Contains(a.stdout, "10.9.0.10/24") {
				t.Errorf("%s: want code %d: %s%s", when, code, a.stdout, a.stderr)
			}
		}
	}
	get("after ADD", 0)
	other := withPrev(alone, strings.Replace(out, "10.9.0.10/24", "10.9.0.77/24", 1))
	if a := w.plugin(spec.Get, "dhcp", other, c); a.code(t) != spec.CodeCheck {
		t.Errorf("another address in prevResult: %s", a.stdout)
	}
	asked := len(s.Seen())
	d.kill(syscall.SIGKILL)
	get("without the daemon", spec.CodeTryAgain)
	w.daemon()
	get("with the next daemon", 0)
	if err := kerneltest.Dial(t, c.NS).DelLink("eth0"); err != nil {
		t.Fatal(err)
	}
	get("without the interface", spec.CodeCheck) // DEL has a lease to release
	if n := len(s.Seen()); n > asked+1 {         // a restarted daemon may verify the lease
		t.Errorf("GET sent messages: %d", n-asked)
	}
	w.must("DEL", w.plugin(spec.Del, "bridge", dhcpConf, c))
	get("after DEL", spec.CodeUnknown)
}

// The port of a gateway is on the bridge when the lease is asked for.
func TestKernelDHCPGateway(t *testing.T) {
	w := newDHCPWorld(t)
	dhcptest.Start4(t, w.server)
	w.daemon()
	conf := strings.Replace(dhcpConf, `"bridge":"br0"`, `"bridge":"br0","isGateway":true`, 1)
	if out := w.must("ADD", w.plugin(spec.Add, "bridge", conf, w.Container("ctr"))); !strings.Contains(out, "10.9.0.10/24") {
		t.Error(out)
	}
}

// The daemon refuses a lease to a second namespace with the container ID and the interface of a
// live one, which keeps its lease.
func TestKernelDHCPSecondAdd(t *testing.T) {
	w := newDHCPWorld(t)
	dhcptest.Start4(t, w.server)
	w.daemon()
	first, second := w.Container("ctr"), w.Container("second")
	for _, c := range []applettest.Container{first, second} {
		w.must("ADD", w.plugin(spec.Add, "bridge", dhcpConf, c))
	}
	alone := strings.Replace(dhcpConf, `"bridge"`, `"dhcp"`, 1)
	again := second
	again.ID = first.ID
	if a := w.plugin(spec.Add, "dhcp", alone, again); a.code(t) != spec.CodeBusy || !strings.Contains(a.stdout, "10.9.0.10 has been allocated to ctr, duplicate allocation is not allowed") {
		t.Errorf("ADD in another namespace: %s%s", a.stdout, a.stderr)
	}
	if a := w.plugin(spec.Get, "dhcp", alone, first); a.code(t) != 0 || !strings.Contains(a.stdout, "10.9.0.10/24") {
		t.Errorf("GET of the first: %s%s", a.stdout, a.stderr)
	}
}
