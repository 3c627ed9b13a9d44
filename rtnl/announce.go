package rtnl

import "cnibox/internal/netns"

// NDNotify is the setting that [Announce] needs for IPv6 addresses, as [LinkChange.ARPNotify] for those of
// IPv4. With it a link announces its link-local address whenever it comes up; on a bridge of hundreds of
// ports each such packet takes milliseconds, so it is best set when the link is up, and only where there
// are IPv6 addresses.
func NDNotify(name string) netns.Sysctl {
	return netns.Sysctl{Key: "net/ipv6/conf/" + name + "/ndisc_notify", Value: "1", Optional: true}
}

// Announce makes the kernel announce the addresses of the link with its MAC address to all
// hosts on it: by a gratuitous ARP request for each IPv4 address,
// by an unsolicited neighbour advertisement for each IPv6 one that is not
// tentative. A host that knew an address by another MAC takes the new one at
// once. It does so by giving the link the MAC address it has, which is an event
// for the kernel if arp_notify and ndisc_notify are on; a packet socket
// would take 10 to 30 ms to close. The link must be up and carry packets.
func Announce(l *Link) Op { return ChangeLink(l.Index, LinkChange{MAC: l.MAC}) }

// Announces reports whether [Announce] works for a link. An ipvlan has its parent's MAC
// address, which cannot be set. The kernel announces the addresses of an ipvlan when it comes up,
// and IPv6 addresses after duplicate detection, if these settings are on before.
func (l *Link) Announces() bool { return l.Kind != "ipvlan" }
