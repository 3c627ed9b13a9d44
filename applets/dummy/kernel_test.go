package dummy_test

import (
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// Addresses are usable when ADD returns, without duplicate address detection. The link has the
// configured MAC address.
func TestKernelDummyWithoutDAD(t *testing.T) {
	kerneltest.NeedKind(t, "CONFIG_DUMMY", rtnl.Dummy{})
	h := applettest.NewHost(t)
	p := h.Container("ctr")
	conf := strings.Replace(applettest.Plugins["dummy"].Confs["both families"], `"name"`, `"mac":"02:00:00:00:00:0d","name"`, 1)
	out := h.Must(spec.Add, "dummy", conf, p)
	c := kerneltest.Dial(t, p.NS)
	l := kerneltest.Link(t, c, "eth0")
	if a := kerneltest.Addr(t, c, l.Index, "fd00:1::2"); a.Tentative || !a.NoDAD || l.MAC.String() != "02:00:00:00:00:0d" || !strings.Contains(out, l.MAC.String()) {
		t.Errorf("got %+v on %+v: %s", a, l, out)
	}
	h.Must(spec.Check, "dummy", applettest.Prev(conf, out), p)
}

// Without ipam ADD fails and makes nothing.
func TestKernelDummyNeedsIPAM(t *testing.T) {
	h := applettest.NewHost(t)
	h.Refuse(7, "", spec.Add, "dummy",
		`{"cniVersion":"1.1.0","name":"demo","type":"dummy"}`, h.Container("ctr"))
}
