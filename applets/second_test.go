package applets_test

import (
	"strings"
	"testing"

	"cnibox/applets/applettest"
	"cnibox/internal/kerneltest"
	"cnibox/spec"
)

// With conf/default/forwarding of 0 the link that routes for the container forwards all the same, and CHECK and RESTORE
// know its setting.
func TestKernelForwardingOfLink(t *testing.T) {
	for _, conf := range []string{applettest.GatewayConf, applettest.PtpConf} {
		h := applettest.NewHost(t)
		for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
			h.NoError(h.NS.SetSysctl(key, "1"))
		}
		for _, key := range []string{"net/ipv4/conf/default/forwarding", "net/ipv6/conf/default/forwarding"} {
			h.NoError(h.NS.SetSysctl(key, "0"))
		}
		c := h.Container("a")
		res := h.Must(spec.Add, typeOf(conf), conf, c)
		link := "br0"
		if typeOf(conf) == "ptp" {
			link = kerneltest.Links(t, h.NS)[1].Name
		}
		h.Must(spec.Check, typeOf(conf), applettest.Prev(conf, res), c)
		for _, family := range []string{"ipv4", "ipv6"} {
			key := "net/" + family + "/conf/" + link + "/forwarding"
			if got, err := h.NS.Sysctl(key); err != nil || got != "1" {
				t.Errorf("%s is %q, %v", key, got, err)
			}
			h.NoError(h.NS.SetSysctl(key, "0"))
			if code, out := h.Call(spec.Check, typeOf(conf), applettest.Prev(conf, res), c); code != spec.CodeCheck || !strings.Contains(out, key+" is 0") {
				t.Errorf("CHECK with %s=0: %d %s", key, code, out)
			}
			h.Must(spec.Restore, typeOf(conf), applettest.Prev(conf, res), c)
			if got, err := h.NS.Sysctl(key); err != nil || got != "1" {
				t.Errorf("RESTORE leaves %s at %q, %v", key, got, err)
			}
		}
	}
}
