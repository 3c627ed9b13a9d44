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
	all := map[string]child{"tap": {need: func(t *testing.T) { kerneltest.Need(t, "CONFIG_TUN", rtnl.ProbeTap) }}}
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
