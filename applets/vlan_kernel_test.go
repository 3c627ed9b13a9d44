//go:build !no_vlan

package applets_test

import (
	"strings"
	"testing"
	"time"

	"cnibox/internal/kerneltest"
	"cnibox/rtnl"
	"cnibox/spec"
)

func init() {
	addChild("vlan", `,"master":"up0","vlanId":42`, "CONFIG_VLAN_8021Q", rtnl.Vlan{ID: 7})
	rollbackConfs["vlan-mac-alone"] = childConf("vlan", `,"master":"up0","vlanId":4094,"mtu":1400,"mac":"02:00:00:00:00:07"`)
}

func vlanNode(t *testing.T) (*node, segment) {
	t.Helper()
	kerneltest.NeedKind(t, "CONFIG_VLAN_8021Q", rtnl.Vlan{ID: 7})
	n := newNode(t)
	return n, n.segment()
}

// A master has a VLAN once; who comes second is told, and the first keeps it. After a
// failed ADD the VLAN is free again, which the reference's is not [S].
func TestKernelVLANInUse(t *testing.T) {
	n, s := vlanNode(t)
	conf := childConf("vlan", `,"master":"up0","vlanId":42`)
	p := n.pod("ctr")
	broken := strings.Replace(conf, "10.9.0.0/16\",\"gw\":\"10.1.0.1", "10.9.0.0/16\",\"gw\":\"10.3.0.1", 1)
	if code, out := n.call(t.Context(), spec.Add, "vlan", broken, p); code == 0 {
		t.Fatalf("ADD with a gateway out of reach: %s", out)
	}
	out := n.must(spec.Add, "vlan", conf, p)
	n.refuse(100, "VLAN 42 of up0 is in use", spec.Add, "vlan", conf, n.pod("second"))
	n.must(spec.Check, "vlan", prev(conf, out), p)
	n.refuse(102, "has VLAN ID 42, not 43", spec.Check, "vlan", strings.Replace(prev(conf, out), `"vlanId":42`, `"vlanId":43`, 1), p)
	n.must(spec.Add, "vlan", strings.Replace(conf, `"vlanId":42`, `"vlanId":0`, 1), n.pod("zero"))
	if err := s.host.SetLink(s.up0.Index, rtnl.LinkChange{Up: new(false)}); err != nil {
		t.Fatal(err)
	}
	n.refuse(7, "master up0 is down", spec.Add, "vlan", strings.Replace(conf, `"vlanId":42`, `"vlanId":44`, 1), n.pod("down"))
}

// Frames of the VLAN go to the link of that VLAN.
func TestKernelVLANTraffic(t *testing.T) {
	n, s := vlanNode(t)
	conf := childConf("vlan", `,"master":"up0","vlanId":42,"mac":"02:00:00:00:00:2a"`)
	p := n.pod("ctr")
	n.echo(p)
	out := n.must(spec.Add, "vlan", conf, p)
	if !strings.Contains(out, "02:00:00:00:00:2a") {
		t.Errorf("the address asked for is not there: %s", out)
	}
	for id, want := range map[int]string{42: "ctr", 43: ""} {
		within := patience
		if want == "" {
			within = time.Second
		}
		l, err := s.wire.CreateLink(rtnl.LinkSpec{Name: "tagged", Parent: s.up1.Index, Kind: rtnl.Vlan{ID: id}, Up: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.wire.AddAddr(l.Index, rtnl.Addr{Prefix: prefix("10.1.0.200/24")}); err != nil {
			t.Fatal(err)
		}
		if who := ask(t, s.ns, "10.1.0.2", within); who != want {
			t.Errorf("in VLAN %d %q answers, want %q", id, who, want)
		}
		if err := s.wire.DelLink("tagged"); err != nil {
			t.Fatal(err)
		}
	}
}

// What is wrong is told before anything is touched.
func TestKernelVLANBadConf(t *testing.T) {
	n := newNode(t)
	n.segment()
	for keys, want := range map[string]string{
		`,"vlanId":5`:                                      `\"master\" field is required`,
		`,"master":"up0","vlanId":4095`:                    "invalid VLAN ID 4095",
		`,"master":"up0","vlanId":-1`:                      "invalid VLAN ID -1",
		`,"master":"../up0","vlanId":1`:                    "contains / or :",
		`,"master":"up0","vlanId":1,"mtu":2000`:            "must be [0, master MTU(1500)]",
		`,"master":"none","vlanId":1`:                      "failed to lookup master",
		`,"master":"up0","vlanId":1,"ipam":{},"other":"x"`: "",
	} {
		conf := childConf("vlan", keys)
		if want == "" { // the last "ipam" counts, so take that one away
			conf, want = strings.Replace(conf, `"type":"host-local"`, `"type":""`, 1), "requires an IPAM configuration"
		}
		n.refuse(7, want, spec.Add, "vlan", conf, n.pod("ctr"))
	}
}
