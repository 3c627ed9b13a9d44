//go:build !no_portmap

package applets

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"cnibox/nft"
	"cnibox/rtnl"
	"cnibox/spec"
)

// localnetTarget returns the container's address if ports are to be reached
// through 127.0.0.1. Without masquerading their answers would not come back,
// and a port of one address elsewhere is not reached from there.
// The zero Addr is none. IPv6 has no such switch: ::1 never leaves the host.
func localnetTarget(maps []nft.PortMap) netip.Addr {
	for _, m := range maps {
		local := !m.HostIP.IsValid() || m.HostIP.IsUnspecified() || m.HostIP.IsLoopback()
		if a := m.Target.Addr(); a.Is4() && local && m.SNAT {
			return a
		}
	}
	return netip.Addr{}
}

// routeLocalnet calls do with the setting that lets packets from 127.0.0.1
// out to the container: route_localnet of the link that leads to it.
// Linux drops them otherwise as martians; with it on, neighbours on the link could
// reach services on 127.0.0.1 (CVE-2020-8558), but for the rule in our table.
func routeLocalnet(maps []nft.PortMap, do func(key string) error) error {
	to := localnetTarget(maps)
	if !to.IsValid() {
		return nil
	}
	conn, err := rtnl.Dial(nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	route, err := conn.RouteTo(to)
	if err != nil {
		return nil // no route: nobody gets there from here, as in the reference
	}
	link, err := conn.LinkAt(route.Link)
	if err != nil {
		return err
	}
	return do("net/ipv4/conf/" + link.Name + "/route_localnet")
}

// setLocalnet is for ADD. It is not taken back: the link serves others too.
func setLocalnet(key string) error {
	var host *rtnl.NS
	err := host.SetSysctl(key, "1")
	if errors.Is(err, unix.EROFS) {
		return spec.Errorf(spec.CodeNotReady, `%w: published ports are reached through 127.0.0.1 only with it; make /proc/sys writable, or set "snat" to false`, err)
	}
	return err
}

// checkLocalnet is for CHECK.
// Its code is 102.
func checkLocalnet(key string) error {
	var host *rtnl.NS
	value, err := host.Sysctl(key)
	if err == nil && value != "1" {
		err = fmt.Errorf("%s is %s: ports are not reached through 127.0.0.1", key, value)
	}
	if err != nil {
		return spec.Errorf(spec.CodeCheck, "%w", err)
	}
	return nil
}
