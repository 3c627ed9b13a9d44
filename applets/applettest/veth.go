package applettest

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/rtnl"
)

// A Veth is a host and container c1 with a veth pair, for chained plugins: host0 with 10.9.0.1 and
// fd09::1 on the host, eth0 with 10.9.0.2 and fd09::2 in the container, both up.
type Veth struct {
	*Host
	Cont               Container
	HostConn, ContConn *rtnl.Conn
	Host0, Eth0        *rtnl.Link
}

// NewVeth returns a Veth, which is deleted when the test ends.
func NewVeth(t *testing.T) *Veth {
	t.Helper()
	v := &Veth{Host: NewHost(t)}
	v.Cont = v.Container("c1")
	v.HostConn, v.ContConn = kerneltest.Dial(t, v.NS), kerneltest.Dial(t, v.Cont.NS)
	v.Host0, v.Eth0 = v.AddPair("host0", "eth0", "10.9.0.1/24", "fd09::1/64", "10.9.0.2/24", "fd09::2/64")
	return v
}

// AddPair adds a veth pair, which carries packets. The first two addresses are for the host.
func (v *Veth) AddPair(host, cont string, addrs ...string) (*rtnl.Link, *rtnl.Link) {
	v.Helper()
	h := kerneltest.AddLink(v.T, v.NS, rtnl.LinkSpec{Name: host, Up: true, Peer: &rtnl.LinkSpec{Name: cont, NS: v.Cont.NS}})
	// The kernel adds a link-local address and its route asynchronously.
	ours, theirs := addrs[:min(2, len(addrs))], []string{"fe80::9/64"}
	kerneltest.Address(v.T, v.NS, host, ours...)
	kerneltest.Address(v.T, v.Cont.NS, cont, append(theirs, addrs[len(ours):]...)...)
	kerneltest.WaitUp(v.T, v.NS, host)
	kerneltest.WaitUp(v.T, v.Cont.NS, cont)
	return h, kerneltest.Link(v.T, v.ContConn, cont)
}

// VethRoutes are the routes of [Veth.AddRoutes] in a result.
const VethRoutes = `[{"dst":"0.0.0.0/0","gw":"10.9.0.1"},{"dst":"::/0","gw":"fd09::1"},{"dst":"192.0.2.0/24","gw":"10.9.0.7"}]`

// AddRoutes adds default routes and a route to 192.0.2.0/24 through eth0.
func (v *Veth) AddRoutes() {
	v.Helper()
	for dst, gw := range map[string]string{"0.0.0.0/0": "10.9.0.1", "::/0": "fd09::1", "192.0.2.0/24": "10.9.0.7"} {
		v.NoError(v.ContConn.AddRoute(rtnl.Route{Dst: netip.MustParsePrefix(dst), GW: netip.MustParseAddr(gw), Link: v.Eth0.Index}))
	}
}

// PrevResult returns a result with both interfaces, the addresses of eth0, and routes, a JSON
// array.
func (v *Veth) PrevResult(routes string) string {
	return fmt.Sprintf(`{"cniVersion":"1.1.0","interfaces":[{"name":"host0"},{"name":"eth0","sandbox":%q}],"routes":%s,
		"ips":[{"address":"10.9.0.2/24","gateway":"10.9.0.1","interface":1},
			{"address":"fd09::2/64","gateway":"fd09::1","interface":1}]}`, v.Cont.Path, routes)
}

// State returns what plugins may change in both namespaces, without ruleset and files.
func (v *Veth) State() string {
	v.Helper()
	return kerneltest.Snapshot(v.T, v.NS) + "--\n" + kerneltest.Snapshot(v.T, v.Cont.NS)
}
