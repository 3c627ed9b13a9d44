package bridge_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// routed returns a bridge network of both families with routes; %d in routes is replaced by its
// number.
func routed(number int, routes string) string {
	conf := `{"cniVersion":"1.1.0","name":"net%d","type":"bridge","bridge":"br%d","ipam":{"type":"static","addresses":[
		{"address":"10.%d.0.5/24","gateway":"10.%d.0.1"},{"address":"fd00:%d::5/64","gateway":"fd00:%d::1"}],"routes":[` + routes + `]}}`
	return strings.ReplaceAll(conf, "%d", fmt.Sprint(number))
}

// viaOf lists the gateways of the routes to a destination, in the kernel's order.
func viaOf(t *testing.T, p applettest.Container, dst string) (via []string) {
	t.Helper()
	routes, err := kerneltest.Dial(t, p.NS).Routes(rtnl.RouteFilter{Dst: netip.MustParsePrefix(dst)})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		via = append(via, r.GW.String())
	}
	return via
}

// Two networks may have a route to the same destination. ADD of the second succeeds and does not
// redirect the traffic of the first, CHECK of both succeeds, and DEL of one keeps the other's
// route.
func TestKernelRouteOfTwoNetworks(t *testing.T) {
	const routes = `{"dst":"10.99.0.0/16"},{"dst":"fd99::/16"}`
	for _, first := range []int{1, 2} {
		h := applettest.NewHost(t)
		p := h.Container("ctr")
		res := map[int]string{}
		for i := 1; i <= 2; i++ {
			res[i] = h.Must(spec.Add, "bridge", routed(i, routes), p, fmt.Sprintf("CNI_IFNAME=eth%d", i))
		}
		if got := viaOf(t, p, "10.99.0.0/16"); !slices.Equal(got, []string{"10.1.0.1", "10.2.0.1"}) {
			t.Errorf("IPv4: got %q", got)
		}
		if got := viaOf(t, p, "fd99::/16"); len(got) != 2 {
			t.Errorf("IPv6: got %q", got)
		}
		for i := 1; i <= 2; i++ {
			h.Must(spec.Check, "bridge", applettest.Prev(routed(i, routes), res[i]), p, fmt.Sprintf("CNI_IFNAME=eth%d", i))
		}
		h.Must(spec.Del, "bridge", routed(first, routes), p, fmt.Sprintf("CNI_IFNAME=eth%d", first))
		left := 3 - first
		h.Must(spec.Check, "bridge", applettest.Prev(routed(left, routes), res[left]), p, fmt.Sprintf("CNI_IFNAME=eth%d", left))
		for _, dst := range []string{"10.99.0.0/16", "fd99::/16"} {
			if got := viaOf(t, p, dst); len(got) != 1 || !strings.Contains(got[0], fmt.Sprintf("%d", left)) {
				t.Errorf("DEL of network %d leaves %q to %s", first, got, dst)
			}
		}
	}
}

// A result may have several gateways for a destination, also for a default route. All are
// installed, those of IPv4 in their order, a repeated route once. Those of another network go behind,
// and are what is left after DEL of the first.
func TestKernelSeveralGateways(t *testing.T) {
	h := applettest.NewHost(t)
	p := h.Container("ctr")
	var routes []string
	for _, dst := range []string{"0.0.0.0/0", "10.99.0.0/16", "::/0", "fd99::/16"} {
		for _, host := range []string{"7", "3", "7"} {
			gw := "10.%d.0." + host
			if strings.Contains(dst, ":") {
				gw = "fd00:%d::" + host
			}
			routes = append(routes, fmt.Sprintf(`{"dst":%q,"gw":"%s"}`, dst, gw))
		}
	}
	conf := routed(1, strings.Join(routes, ","))
	res := h.Must(spec.Add, "bridge", conf, p)
	for dst, want := range map[string][]string{
		"0.0.0.0/0": {"10.1.0.7", "10.1.0.3"}, "10.99.0.0/16": {"10.1.0.7", "10.1.0.3"},
		"::/0": {"fd00:1::3", "fd00:1::7"}, "fd99::/16": {"fd00:1::3", "fd00:1::7"},
	} {
		got := viaOf(t, p, dst)
		if strings.Contains(dst, ":") {
			slices.Sort(got)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", dst, got, want)
		}
	}
	h.Must(spec.Check, "bridge", applettest.Prev(conf, res), p)

	second := h.Must(spec.Add, "bridge", routed(2, strings.Join(routes, ",")), p, "CNI_IFNAME=net1")
	if got := viaOf(t, p, "0.0.0.0/0"); !slices.Equal(got, []string{"10.1.0.7", "10.1.0.3", "10.2.0.7", "10.2.0.3"}) {
		t.Errorf("default routes %q: %s", got, second)
	}
	for _, dst := range []string{"192.0.2.1", "2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8::4", "fd99::1", "fd99::2", "fd99::3", "fd99::4"} {
		r, err := kerneltest.Dial(t, p.NS).RouteTo(netip.MustParseAddr(dst))
		h.NoError(err)
		if gw := r.GW.String(); !strings.HasPrefix(gw, "10.1.") && !strings.HasPrefix(gw, "fd00:1:") {
			t.Errorf("%s: by %s", dst, gw)
		}
	}
	h.Must(spec.Check, "bridge", applettest.Prev(routed(2, strings.Join(routes, ",")), second), p, "CNI_IFNAME=net1")
	h.Must(spec.Del, "bridge", conf, p)
	if got := viaOf(t, p, "10.99.0.0/16"); !slices.Equal(got, []string{"10.2.0.7", "10.2.0.3"}) {
		t.Errorf("DEL of the first leaves %q", got)
	}
	for dst, want := range map[string]string{"192.0.2.1": "10.2.", "2001:db8::1": "fd00:2:", "fd99::1": "fd00:2:"} {
		if r, err := kerneltest.Dial(t, p.NS).RouteTo(netip.MustParseAddr(dst)); err != nil || !strings.HasPrefix(r.GW.String(), want) {
			t.Errorf("DEL of the first leaves to %s the way by %s, %v", dst, r.GW, err)
		}
	}
}
