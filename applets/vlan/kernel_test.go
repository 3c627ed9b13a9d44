package vlan_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/applets/applettest"
	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

func vlanNode(t *testing.T) (*applettest.Host, applettest.Segment) {
	t.Helper()
	kerneltest.NeedKind(t, "CONFIG_VLAN_8021Q", rtnl.Vlan{ID: 7})
	h := applettest.NewHost(t)
	return h, h.Segment()
}

// A VLAN can exist once on a master: the second ADD is an error, and the first link remains. A
// failed ADD leaves the VLAN unused; in the reference it does not.
func TestKernelVLANInUse(t *testing.T) {
	h, s := vlanNode(t)
	conf := applettest.ChildConf("vlan", `"master":"up0","vlanId":42`)
	p := h.Container("ctr")
	broken := strings.Replace(conf, "10.9.0.0/16\",\"gw\":\"10.1.0.1", "10.9.0.0/16\",\"gw\":\"10.3.0.1", 1)
	if code, out := h.Call(spec.Add, "vlan", broken, p); code == 0 {
		t.Fatalf("ADD with a gateway out of reach: %s", out)
	}
	out := h.Must(spec.Add, "vlan", conf, p)
	h.Refuse(100, "VLAN 42 of up0 is in use", spec.Add, "vlan", conf, h.Container("second"))
	h.Must(spec.Check, "vlan", applettest.Prev(conf, out), p)
	h.Refuse(102, "has VLAN ID 42, not 43", spec.Check, "vlan", strings.Replace(applettest.Prev(conf, out), `"vlanId":42`, `"vlanId":43`, 1), p)
	h.Must(spec.Add, "vlan", strings.Replace(conf, `"vlanId":42`, `"vlanId":0`, 1), h.Container("zero"))
	if err := s.Host.SetLink(s.Up0.Index, rtnl.LinkChange{Up: new(false)}); err != nil {
		t.Fatal(err)
	}
	h.Refuse(7, "master up0 is down", spec.Add, "vlan", strings.Replace(conf, `"vlanId":42`, `"vlanId":44`, 1), h.Container("down"))
}

// Frames of a VLAN reach the link of that VLAN.
func TestKernelVLANTraffic(t *testing.T) {
	h, s := vlanNode(t)
	conf := applettest.ChildConf("vlan", `"master":"up0","vlanId":42,"mac":"02:00:00:00:00:2a"`)
	p := h.Container("ctr")
	h.Listen(p.NS, p.ID)
	out := h.Must(spec.Add, "vlan", conf, p)
	if !strings.Contains(out, "02:00:00:00:00:2a") {
		t.Errorf("the address asked for is not there: %s", out)
	}
	for id, want := range map[int]string{42: "ctr", 43: ""} {
		within := applettest.Timeout
		if want == "" {
			within = time.Second
		}
		l, err := s.Remote.CreateLink(rtnl.LinkSpec{Name: "tagged", Parent: s.Up1.Index, Kind: rtnl.Vlan{ID: id}, Up: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Remote.AddAddr(l.Index, rtnl.Addr{Prefix: netip.MustParsePrefix("10.1.0.200/24")}); err != nil {
			t.Fatal(err)
		}
		if who := h.Who(s.NS, "10.1.0.2", within); who != want {
			t.Errorf("in VLAN %d %q answers, want %q", id, who, want)
		}
		if err := s.Remote.DelLink("tagged"); err != nil {
			t.Fatal(err)
		}
	}
}

// An invalid configuration is refused before anything is changed.
func TestKernelVLANInvalidConf(t *testing.T) {
	h := applettest.NewHost(t)
	h.Segment()
	for keys, want := range map[string]string{
		`"vlanId":5`:                                      `\"master\" field`,
		`"master":"up0","vlanId":4095`:                    "ID 4095",
		`"master":"up0","vlanId":-1`:                      "invalid VLAN ID -1",
		`"master":"../up0","vlanId":1`:                    "contains / or :",
		`"master":"up0","vlanId":1,"mtu":2000`:            "must be [0, master MTU(1500)]",
		`"master":"none","vlanId":1`:                      `master \"none\"`,
		`"master":"up0","vlanId":1,"ipam":{},"other":"x"`: "",
	} {
		conf := applettest.ChildConf("vlan", keys)
		if want == "" { // deletes the last "ipam", which overrides the others
			conf, want = strings.Replace(conf, `"type":"host-local"`, `"type":""`, 1), "IPAM configuration"
		}
		h.Refuse(7, want, spec.Add, "vlan", conf, h.Container("ctr"))
	}
}
