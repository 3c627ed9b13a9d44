package main

import (
	"context"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// Indexes of the floor's links, set by us so that no request has to look them up.
const (
	floorPort = 5000
	floorEth  = 5001
)

// A floor does the kernel work of the chain's ADD and DEL and nothing else, over sockets that are
// already open: no process, configuration, lease or cache. The difference to cnibox's time is its
// overhead.
type floor struct {
	host, cont *rtnl.Conn
	bridge     uint32
	table      *nft.Table
	a          attachment
}

// The floor has its own subnet and link name.
var (
	floorAddr = netip.MustParsePrefix("10.241.0.2/16")
	floorGate = netip.MustParsePrefix("10.241.0.1/16")
	floorName = spec.Attachment{Network: "floor", ContainerID: "floor", IfName: "eth0"}
)

// newFloor makes a host with a bridge, a container, and sockets in both, which stay open until the
// process ends.
func (l *lab) newFloor() (*floor, error) {
	host, err := l.newHost()
	if err != nil {
		return nil, err
	}
	a, err := newAttachment("floor", 29999)
	if err != nil {
		return nil, err
	}
	f := &floor{table: nft.Open(host.NS), a: a}
	if f.host, err = rtnl.Dial(host.NS); err != nil {
		return nil, err
	}
	if f.cont, err = rtnl.Dial(a.netns.NS); err != nil {
		return nil, err
	}
	bridge, err := f.host.CreateLink(rtnl.LinkSpec{Name: "bench0", Kind: rtnl.Bridge{}, Up: true})
	if err != nil {
		return nil, err
	}
	f.bridge = bridge.Index
	return f, f.host.AddAddr(bridge.Index, rtnl.Addr{Prefix: floorGate})
}

// subject measures ADD and, of DEL, RTM_DELLINK alone.
func (f *floor) subject() subject {
	return subject{name: "floor", steps: []string{"ADD", "DEL"}, round: func() ([]cost, error) {
		settle()
		begin := time.Now()
		if err := f.add(); err != nil {
			return nil, err
		}
		added := time.Now()
		if err := f.host.Do(rtnl.DropLink(floorPort)); err != nil {
			return nil, err
		}
		gone := time.Now()
		err := f.table.Update(context.Background(), func(x *nft.Tx) error { x.Release(floorName); return nil })
		return []cost{{wall: added.Sub(begin)}, {wall: gone.Sub(added)}}, err
	}}
}

// add makes the same changes as the chain's ADD: a veth pair, an address, a default route,
// masquerading and a published port.
func (f *floor) add() error {
	err := f.host.AddLink(rtnl.LinkSpec{
		Name: "floor0", Index: floorPort, Master: f.bridge, Up: true,
		Peer: &rtnl.LinkSpec{Name: "eth0", Index: floorEth, NS: f.a.netns.NS},
	})
	if err != nil {
		return err
	}
	up := true
	err = f.cont.Do(
		rtnl.ChangeLink(floorEth, rtnl.LinkChange{Up: &up}),
		rtnl.NewAddr(floorEth, rtnl.Addr{Prefix: floorAddr}),
		rtnl.NewRoute(rtnl.Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), GW: floorGate.Addr(), Link: floorEth}),
	)
	if err != nil {
		return err
	}
	return f.table.Update(context.Background(), func(x *nft.Tx) error {
		x.Masquerade(floorName, floorAddr)
		return x.PortMap(floorName, nft.PortMap{
			Proto: unix.IPPROTO_TCP, HostPort: uint16(f.a.port), SNAT: true,
			Target: netip.AddrPortFrom(floorAddr.Addr(), 80), TargetPrefix: floorAddr,
		})
	})
}
