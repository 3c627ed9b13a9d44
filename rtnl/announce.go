package rtnl

import "github.com/cnibox/cnibox/internal/netns"

// NDNotify is the sysctl that [Announce] needs for IPv6 addresses, as it needs
// [LinkChange.ARPNotify] for IPv4. With it a link announces its link-local address whenever it
// comes up; on a bridge of hundreds of ports each such packet takes milliseconds. So set it when
// the link is up, and only for links with IPv6 addresses.
func NDNotify(name string) netns.Sysctl {
	return netns.Sysctl{Key: "net/ipv6/conf/" + name + "/ndisc_notify", Value: "1", Optional: true}
}

// Announce makes the kernel announce the addresses of the link with its MAC address to all hosts on
// the link: by a gratuitous ARP request for each IPv4 address, and by an unsolicited neighbour
// advertisement for each IPv6 address that is not tentative. Hosts replace an older MAC of the
// address at once. Announce sets the link's MAC address to its current value, which triggers the
// announcement if arp_notify and ndisc_notify are on; a packet socket would take 10 to 30 ms to
// close. The link must be up and carry packets.
func Announce(l *Link) Op { return ChangeLink(l.Index, LinkChange{MAC: l.MAC}) }

// Announces reports whether [Announce] works for a link. An ipvlan has its parent's MAC address,
// which cannot be set. The kernel announces an ipvlan's addresses when it comes up, and IPv6
// addresses after duplicate address detection, if these sysctls are on before.
func (l *Link) Announces() bool { return l.Kind != "ipvlan" }
