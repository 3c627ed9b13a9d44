package applets_test

import (
	"strings"
	"testing"

	"cnibox/internal/kerneltest"
	"cnibox/rtnl"
	"cnibox/spec"
)

// CHECK sees that the master is down, on the host and in the container: nothing passes
// then, though the link on it stays up.
func TestKernelChildMasterDown(t *testing.T) {
	for _, inContainer := range []bool{false, true} {
		eachChild(t, func(t *testing.T, n *node, s segment, applet, conf string) {
			if applet == "dummy" {
				t.Skip("has no master")
			}
			p := n.pod("ctr")
			c := s.host
			if inContainer {
				c = kerneltest.Dial(t, p.ns)
				conf = strings.Replace(conf, `"name"`, `"linkInContainer":true,"name"`, 1)
				if err := s.host.SetLink(s.up0.Index, rtnl.LinkChange{NS: p.ns, Name: new("up0")}); err != nil {
					t.Fatal(err)
				}
				if err := c.SetLink(linkOf(t, c, "up0").Index, rtnl.LinkChange{Up: new(true)}); err != nil {
					t.Fatal(err)
				}
			}
			result := n.must(spec.Add, applet, conf, p)
			n.must(spec.Check, applet, prev(conf, result), p)
			up0 := linkOf(t, c, "up0").Index
			if err := c.SetLink(up0, rtnl.LinkChange{Up: new(false)}); err != nil {
				t.Fatal(err)
			}
			// a VLAN goes down with its master, and its routes are gone then
			n.refuse(102, "is down", spec.Check, applet, strings.Replace(prev(conf, result), `"routes"`, `"other"`, -1), p)
			if applet == "vlan" {
				return
			}
			if err := c.SetLink(up0, rtnl.LinkChange{Up: new(true)}); err != nil {
				t.Fatal(err)
			}
			n.must(spec.Check, applet, prev(conf, result), p)
		})
	}
}
