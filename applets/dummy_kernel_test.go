//go:build !no_dummy

package applets_test

import (
	"strings"
	"testing"

	"cnibox/internal/kerneltest"
	"cnibox/rtnl"
	"cnibox/spec"
)

func init() {
	addChild("dummy", "", "CONFIG_DUMMY", rtnl.Dummy{})
	rollbackConfs["dummy"] = `{"cniVersion":"1.1.0","name":"demo","type":"dummy",
		"ipam":{"type":"host-local","dataDir":"$DIR","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]],"routes":[{"dst":"fd00:9::/64"}]}}`
}

// Addresses can be used when ADD ends, without duplicate detection: nobody else is
// there. An address of the link is had for the asking.
func TestKernelDummyNoWait(t *testing.T) {
	kerneltest.NeedKind(t, "CONFIG_DUMMY", rtnl.Dummy{})
	n := newNode(t)
	p := n.pod("ctr")
	conf := strings.Replace(rollbackConfs["dummy"], `"name"`, `"mac":"02:00:00:00:00:0d","name"`, 1)
	out := n.must(spec.Add, "dummy", conf, p)
	c := kerneltest.Dial(t, p.ns)
	l := linkOf(t, c, "eth0")
	if a := addrsOf(t, c, l.Index, "fd00:1::2"); a.Tentative || !a.NoDAD || l.MAC.String() != "02:00:00:00:00:0d" || !strings.Contains(out, l.MAC.String()) {
		t.Errorf("got %+v on %+v: %s", a, l, out)
	}
	n.must(spec.Check, "dummy", prev(conf, out), p)
}

// Without ipam nothing is made.
func TestKernelDummyNeedsIPAM(t *testing.T) {
	n := newNode(t)
	n.refuse(7, "dummy interface requires an IPAM configuration", spec.Add, "dummy",
		`{"cniVersion":"1.1.0","name":"demo","type":"dummy"}`, n.pod("ctr"))
}
