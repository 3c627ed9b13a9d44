package rtnl

// Announcing are the settings of a link that [Announce] needs.
func Announcing(name string) []Sysctl {
	return []Sysctl{
		{Key: "net/ipv4/conf/" + name + "/arp_notify", Value: "1", Optional: true},
		{Key: "net/ipv6/conf/" + name + "/ndisc_notify", Value: "1", Optional: true},
	}
}

// Announce makes the kernel tell all hosts on the link that its addresses are
// found at its MAC address: by a gratuitous ARP request for each IPv4 address,
// by an unsolicited neighbour advertisement for each IPv6 one that is not
// tentative. A host that knew an address by another MAC takes the new one at
// once. It does so by giving the link the MAC address it has, which is an event
// for the kernel if the [Announcing] settings are in force; a packet socket of
// ours would take 10 to 30 ms to close. The link must be up and carry packets.
func Announce(l *Link) Op { return ChangeLink(l.Index, LinkChange{MAC: l.MAC}) }
