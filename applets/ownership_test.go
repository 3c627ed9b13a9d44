package applets_test

import (
	"strings"
	"testing"

	"cnibox/internal/kerneltest"
	"cnibox/rtnl"
	"cnibox/spec"
)

// ownEnds are configurations of the plugins whose link DEL finds by its name alone.
func ownEnds() map[string]child {
	all := map[string]child{"tap": {need: needTap}}
	for name, c := range children {
		all[name] = c
	}
	return all
}

// Runtimes DEL what they could not ADD: that must not take the link of another network
// under the same name, as the reference's does [S]. One without a label, as the reference
// makes, goes; a container that is a host itself keeps the link it was given.
func TestKernelDelForeign(t *testing.T) {
	for name, c := range ownEnds() {
		t.Run(name, func(t *testing.T) {
			c.need(t)
			n := newNode(t)
			n.segment()
			p := n.pod("ctr")
			cont := kerneltest.Dial(t, p.ns)
			mine := childConf(name, c.keys)
			other := strings.Replace(mine, `"name":"demo"`, `"name":"other"`, 1)
			there := func() bool { _, err := cont.Link("eth0"); return err == nil }

			res := n.must(spec.Add, name, mine, p)
			n.refuse(100, "already exists", spec.Add, name, other, p)
			n.must(spec.Del, name, other, p)
			if !there() {
				t.Fatal("the DEL of another network deleted the link")
			}
			n.must(spec.Check, name, prev(mine, res), p)
			inner := node{t: t, host: p.ns, dir: n.dir}
			gc := strings.Replace(mine, `"name":`, `"cni.dev/valid-attachments":[],"name":`, 1)
			if inner.must(spec.GC, name, gc, pod{}); !there() {
				t.Fatal("GC within the container deleted its link")
			}
			n.must(spec.Del, name, mine, p)
			if there() {
				t.Error("DEL left the link")
			}
			n.must(spec.Add, name, mine, p)
			if err := cont.SetLink(linkOf(t, cont, "eth0").Index, rtnl.LinkChange{Alias: new("uplink")}); err != nil {
				t.Fatal(err)
			}
			if n.must(spec.Del, name, mine, p); there() {
				t.Error("DEL left a link without a label")
			}
		})
	}
}

// Without a label on its host end a pair is the attachment's if it looks like one of the
// reference: its ends are peers of each other, in these two namespaces, and the name is
// one that the reference gives.
func TestKernelPtpForeignPeer(t *testing.T) {
	for name, tt := range map[string]struct {
		hostEnd string
		third   bool // whether the container's peer is in a third namespace
		want    int  // links besides lo on the host after DEL
	}{
		"the reference's":              {"veth01ab23cd", false, 0},
		"a user's":                     {"dk0", false, 1},
		"Docker's":                     {"veth01ab23c", false, 1},
		"a coincidence of indexes":     {"veth01ab23cd", true, 1},
		"a coincidence, a user's name": {"hx", true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			p, q, third := n.pod("b"), n.pod("a"), n.pod("c")
			host := kerneltest.Dial(t, n.host)
			peer := q.ns
			if !tt.third {
				peer = p.ns
			}
			pair := rtnl.LinkSpec{Name: tt.hostEnd, Index: 50, Peer: &rtnl.LinkSpec{Name: "eth0", Index: 60, NS: peer}}
			if err := host.AddLink(pair); err != nil {
				t.Fatal(err)
			}
			if pair.Name, pair.Peer.NS = "px", p.ns; tt.third {
				if err := kerneltest.Dial(t, third.ns).AddLink(pair); err != nil {
					t.Fatal(err)
				}
			}
			if tt.want > 0 {
				n.refuse(100, "already exists", spec.Add, "ptp", ptpConf, p)
				n.refuse(3, "is known", spec.Get, "ptp", strings.Replace(ptpConf, `"1.1.0"`, `"0.4.0"`, 1), p)
			}
			n.must(spec.Del, "ptp", ptpConf, p)
			if left := links(t, n.host); len(left) != 1+tt.want {
				t.Errorf("left on the host: %+v", left)
			}
		})
	}
}
