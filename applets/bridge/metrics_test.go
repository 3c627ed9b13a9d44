package bridge_test

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// The kernel reduces a large MTU or MSS of a route without an error; the result has the reduced
// value.
func TestKernelRouteMetricsReported(t *testing.T) {
	h := applettest.NewHost(t)
	p := h.Container("ctr")
	conf := routed(1, `{"dst":"10.99.0.0/16","mtu":65535,"advmss":4294967295},{"dst":"fd99::/16","mtu":65521,"advmss":65496},
		{"dst":"10.98.0.0/16","mtu":68,"advmss":1},{"dst":"fd98::/16","mtu":65520,"advmss":65495}`)
	out := h.Must(spec.Add, "bridge", conf, p)
	var res struct {
		Routes []struct {
			Dst         netip.Prefix
			MTU, AdvMSS int
		}
	}
	if err := json.Unmarshal([]byte(out), &res); err != nil || len(res.Routes) != 4 {
		t.Fatalf("%v: %s", err, out)
	}
	for _, r := range res.Routes {
		have, err := kerneltest.Dial(t, p.NS).Routes(rtnl.RouteFilter{Dst: r.Dst})
		if err != nil || len(have) != 1 || have[0].MTU != r.MTU || have[0].AdvMSS != r.AdvMSS {
			t.Errorf("%s: reported MTU %d, MSS %d; the kernel has %+v, %v", r.Dst, r.MTU, r.AdvMSS, have, err)
		}
	}
	h.Must(spec.Check, "bridge", applettest.Prev(conf, out), p)
}

// Attributes of routes are also set with the oldest versions, whose IPAM results have another
// format.
func TestKernelRouteMetricsOldVersions(t *testing.T) {
	for _, version := range []string{"0.1.0", "0.2.0"} {
		h := applettest.NewHost(t)
		p := h.Container("ctr")
		h.Must(spec.Add, "bridge", `{"cniVersion":"`+version+`","name":"demo","type":"bridge","bridge":"br0","isGateway":true,"ipam":{
			"type":"host-local","dataDir":"$DIR","subnet":"10.1.0.0/24","routes":[{"dst":"10.99.0.0/16","mtu":1300,"priority":77}]}}`, p)
		have, err := kerneltest.Dial(t, p.NS).Routes(rtnl.RouteFilter{Dst: netip.MustParsePrefix("10.99.0.0/16")})
		if err != nil || len(have) != 1 || have[0].MTU != 1300 || have[0].Priority != 77 {
			t.Errorf("%s: the kernel has %+v, %v", version, have, err)
		}
	}
}
