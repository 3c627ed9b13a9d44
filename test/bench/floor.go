package main

import (
	"context"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/nft"
	"cnibox/rtnl"
	"cnibox/spec"
)

// The indexes that the floor gives its links, so that it need not ask for them.
const (
	floorPort = 5000
	floorEth  = 5001
)

// A floor does the kernel work of the chain's ADD and DEL and nothing else, from
// sockets that are open already: no process, configuration, lease or cache.
// What cnibox takes beyond it is what could still be saved.
type floor struct {
	host, cont *rtnl.Conn
	bridge     uint32
	table      *nft.Table
	a          attachment
}

// The floor has a subnet and a name of its own.
var (
	floorAddr = netip.MustParsePrefix("10.241.0.2/16")
	floorGate = netip.MustParsePrefix("10.241.0.1/16")
	floorName = spec.Attachment{Network: "floor", ContainerID: "floor", IfName: "eth0"}
)

// newFloor opens a host with a bridge, a container, and sockets in both. They
// stay open until the process ends.
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

// subject measures ADD, and the RTM_DELLINK alone of DEL.
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

// add makes the pair, addresses the container's end and enters the rules.
// It is the same work as the chain's: a pair, an address, a default route, a masquerade
// and a published port.
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
