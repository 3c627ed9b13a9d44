package e2e

import (
	"strings"

	"cnibox/internal/kerneltest"
	"cnibox/rtnl"
)

func init() {
	for plugin, keys := range map[string]string{
		"macvlan": `"master":"up0","mode":"private",`, "vlan": `"master":"up0","vlanId":42,`, "ipvlan": `"master":"up1",`, "dummy": "",
	} {
		// a network of its own: GC of another one's must leave it alone
		goodConfs[plugin] = strings.Replace(goodHead, `"demo"`, `"`+plugin+`"`, 1) + `"type":"` + plugin + `",` + keys + goodIPAM + `,` + goodPrev + `}`
		makers[plugin] = true
	}
}

// uplinks give the host two links to sit on, since macvlan and ipvlan cannot share one.
func (w *world) uplinks() {
	w.Helper()
	c := kerneltest.Dial(w.T, w.host)
	up0, err := c.CreateLink(rtnl.LinkSpec{Name: "up0", Up: true, Peer: &rtnl.LinkSpec{Name: "up1"}})
	if err != nil {
		w.Fatal(err)
	}
	if err := c.SetLink(up0.Parent, rtnl.LinkChange{Up: new(true)}); err != nil {
		w.Fatal(err)
	}
}
