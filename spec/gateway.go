package spec

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// A StrayGateway is a gateway below "ipam" outside all networks of the container: the kernel
// rejects a route through it.
type StrayGateway struct {
	Key      string // as ipam.ranges[0][0].gateway
	Addr     netip.Addr
	route    netip.Prefix   // the route with this gateway; zero: a network's gateway
	networks []netip.Prefix // of the container
}

// StrayGateways returns the stray gateways of a plugin's configuration for the networks of a
// container, in the order of host-local's and static's keys; none if it cannot be decoded. A
// gateway to which another route leads, or that is on each link, is not stray.
func StrayGateways(conf []byte, networks []netip.Prefix) (stray []StrayGateway) {
	type gateway struct{ Gateway netip.Addr }
	var c struct {
		IPAM struct {
			gateway
			Ranges    [][]gateway
			Addresses []gateway
			Routes    []struct {
				Dst netip.Prefix
				GW  netip.Addr
			}
		}
	}
	if json.Unmarshal(conf, &c) != nil {
		return nil
	}
	var ofNetworks []netip.Addr
	add := func(key string, gw netip.Addr, route int) {
		near := !gw.IsValid() || gw.Is6() && gw.IsLinkLocalUnicast() ||
			slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(gw) })
		g := StrayGateway{Key: "ipam." + key, Addr: gw, networks: networks}
		for i, r := range c.IPAM.Routes {
			near = near || i != route && r.Dst.Bits() > 0 && r.Dst.Contains(gw)
			if i == route {
				g.route = r.Dst
			}
		}
		if !near {
			stray = append(stray, g)
		}
	}
	ofNetwork := func(key string, g gateway) {
		ofNetworks = append(ofNetworks, g.Gateway)
		add(key, g.Gateway, -1)
	}
	ofNetwork("gateway", c.IPAM.gateway)
	for i, set := range c.IPAM.Ranges {
		for j, r := range set {
			ofNetwork(fmt.Sprintf("ranges[%d][%d].gateway", i, j), r)
		}
	}
	for i, a := range c.IPAM.Addresses {
		ofNetwork(fmt.Sprintf("addresses[%d].gateway", i), a)
	}
	for i, r := range c.IPAM.Routes {
		if !slices.Contains(ofNetworks, r.GW) { // else the network's gateway is reported
			add(fmt.Sprintf("routes[%d].gw", i), r.GW, i)
		}
	}
	return stray
}

// Err returns the error about the gateway, with code 7.
func (g StrayGateway) Err() error {
	where := ""
	if g.route.IsValid() {
		where = " of the route to " + g.route.String()
	}
	var list []string
	for _, n := range g.networks {
		if text := n.Masked().String(); n.Addr().Is4() == g.Addr.Is4() && !slices.Contains(list, text) {
			list = append(list, text)
		}
	}
	e := Errorf(CodeConfig, "the gateway %s%s is in no network of the container", g.Addr, where)
	if len(list) > 0 {
		e = e.WithDetails("%q must be in %s", g.Key, strings.Join(list, " or "))
	}
	return e.AtKey(g.Key)
}
