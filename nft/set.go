package nft

import (
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"golang.org/x/sys/unix"
)

// Families of tables and of addresses: NFPROTO_*, include/uapi/linux/netfilter.h.
const (
	inet   byte = unix.NFPROTO_INET
	bridge byte = unix.NFPROTO_BRIDGE
	v4     byte = unix.NFPROTO_IPV4
	v6     byte = unix.NFPROTO_IPV6
)

// TableName is the name of our tables, in the families inet and bridge.
const TableName = "cnibox"

// A set is one of our sets or maps. The kernel does not know kind and family, and does not allow
// changes of the other fields.
type set struct {
	name   string
	table  byte
	kind   Kind
	family byte   // of the addresses in it; 0 if there are none
	key    string // type in the syntax of nft
	data   string // of a map; "": not a map
}

// A perFamily is a set for each address family.
type perFamily struct{ v4, v6 *set }

func (p perFamily) of(family byte) *set {
	if family == v6 {
		return p.v6
	}
	return p.v4
}

// Types of keys and data that several sets have.
const (
	portType  = "inet_proto . inet_service"
	port4Type = "ipv4_addr . " + portType
	port6Type = "ipv6_addr . " + portType
	target4   = "ipv4_addr . inet_service"
	target6   = "ipv6_addr . inet_service"
	twoNames  = "ifname . ifname"
	toVerdict = "verdict"
)

// Addresses of containers: masqueraded ones, ones that the firewall allows (with the chain of the
// administrator's rules), and ones in a zone of firewalld. An address is that of the last ADD, see [change.lacks].
//
// No rule reads zone. Only it records which attachment has an address in a zone.
var (
	masqSet  = perFamily{&set{"masq4", inet, KindMasquerade, v4, "ipv4_addr", toVerdict}, &set{"masq6", inet, KindMasquerade, v6, "ipv6_addr", toVerdict}}
	allowSet = perFamily{&set{"allow4", inet, KindFirewall, v4, "ipv4_addr", toVerdict}, &set{"allow6", inet, KindFirewall, v6, "ipv6_addr", toVerdict}}
	zoneSet  = perFamily{&set{"zone4", inet, KindZone, v4, "ipv4_addr", ""}, &set{"zone6", inet, KindZone, v6, "ipv6_addr", ""}}
)

// portSets are host ports with their targets. Ports with conditions are reached only through the
// chain that condDispatch has for them.
type portSets struct{ dnat, condDNAT, condDispatch perFamily }

// Host ports for packets to any local address, and to one address.
var (
	anyPorts = portSets{
		dnat:         perFamily{&set{"dnat4", inet, KindPortMap, v4, portType, target4}, &set{"dnat6", inet, KindPortMap, v6, portType, target6}},
		condDNAT:     perFamily{&set{"cond4", inet, KindPortMap, v4, portType, target4}, &set{"cond6", inet, KindPortMap, v6, portType, target6}},
		condDispatch: perFamily{&set{"gate4", inet, KindPortMap, v4, portType, toVerdict}, &set{"gate6", inet, KindPortMap, v6, portType, toVerdict}},
	}
	hostPorts = portSets{
		dnat:         perFamily{&set{"dnat4_host", inet, KindPortMap, v4, port4Type, target4}, &set{"dnat6_host", inet, KindPortMap, v6, port6Type, target6}},
		condDNAT:     perFamily{&set{"cond4_host", inet, KindPortMap, v4, port4Type, target4}, &set{"cond6_host", inet, KindPortMap, v6, port6Type, target6}},
		condDispatch: perFamily{&set{"gate4_host", inet, KindPortMap, v4, port4Type, toVerdict}, &set{"gate6_host", inet, KindPortMap, v6, port6Type, toVerdict}},
	}
	// hairpinSet has the targets of connections that must be masqueraded so that answers return
	// through the host.
	hairpinSet = perFamily{&set{"hairpin4", inet, KindPortMap, v4, port4Type, toVerdict}, &set{"hairpin6", inet, KindPortMap, v6, port6Type, toVerdict}}
)

// Names of interfaces, see [Tx.SetBridgePolicy], [Tx.GuardMAC], [Tx.DropAdverts] and
// [Tx.RecordOwner]. A member identifies an attachment, see memberName.
//
// No rule reads managed_by, isolated_by and enlisted. The first two have the members of a bridge:
// the comment of the bridge's element has no room for thousands. With enlisted an ADD finds out
// whether it is a second one without dumping all elements.
var (
	managedSet    = &set{"managed", inet, KindFirewall, 0, "ifname", ""}    // bridges with a policy
	withinSet     = &set{"within", inet, KindFirewall, 0, twoNames, ""}     // bridge . the same bridge: a rule can so compare two names
	isolatedSet   = &set{"isolated", inet, KindFirewall, 0, twoNames, ""}   // the same, of isolated bridges
	managedBySet  = &set{"managed_by", inet, KindFirewall, 0, twoNames, ""} // bridge . member
	isolatedBySet = &set{"isolated_by", inet, KindFirewall, 0, twoNames, ""}
	enlistedSet   = &set{"enlisted", inet, KindFirewall, 0, "ifname", ""} // members
	guardedSet    = &set{"guarded", bridge, KindMACGuard, 0, "ifname", ""}
	macsSet       = &set{"macs", bridge, KindMACGuard, 0, "ifname . ether_addr", ""}
	advertSet     = &set{"no_adverts", bridge, KindAdverts, 0, "ifname", ""} // ports that may not send router advertisements
)

// retiredSets are the names of sets of earlier versions.
var retiredSets = []string{
	"masq4_next", "masq6_next", "allow4_next", "allow6_next", "zone4_next", "zone6_next", // until base ruleset 4
	"masq_by_owner", "ports_by_owner", "firewall_by_owner", "zone_by_owner", "macs_by_owner", "adverts_by_owner", // in base ruleset 4
}

// sets returns all sets of both tables, in the order of creation.
func sets() []*set {
	return []*set{
		masqSet.v4, masqSet.v6,
		anyPorts.dnat.v4, anyPorts.dnat.v6, hostPorts.dnat.v4, hostPorts.dnat.v6,
		anyPorts.condDNAT.v4, anyPorts.condDNAT.v6, hostPorts.condDNAT.v4, hostPorts.condDNAT.v6,
		anyPorts.condDispatch.v4, anyPorts.condDispatch.v6, hostPorts.condDispatch.v4, hostPorts.condDispatch.v6,
		hairpinSet.v4, hairpinSet.v6,
		guardedSet, macsSet,
		allowSet.v4, allowSet.v6, zoneSet.v4, zoneSet.v6,
		managedSet, withinSet, isolatedSet, managedBySet, isolatedBySet,
		enlistedSet, advertSet,
	}
}

// isAddresses reports whether the keys are addresses of containers.
func (s *set) isAddresses() bool {
	return s.family != 0 && s.kind != KindPortMap
}

// keyLen returns the length of the set's keys in bytes.
func (s *set) keyLen() int { return int(datatype(s.key).Bytes) }

func (s *set) isMap() bool { return s.data != "" }

// verdicts reports whether the set is a verdict map.
func (s *set) verdicts() bool { return s.data == toVerdict }

// ref returns the library's reference to the set.
func (s *set) ref() *nftables.Set { return &nftables.Set{Table: ours(s.table), Name: s.name} }

// definition returns the set as it is created. The id identifies the set within its batch and must
// be unique there.
func (s *set) definition(id uint32) *nftables.Set {
	d := s.ref()
	d.ID, d.KeyType = id, datatype(s.key)
	if strings.HasPrefix(s.key, "ifname") {
		d.KeyByteOrder = binaryutil.NativeEndian // of the text it begins with; without it nft lists names as empty
	}
	if s.isMap() {
		d.IsMap, d.DataType = true, datatype(s.data)
	}
	return d
}

// datatype returns the library's value for a type in the syntax of nft.
func datatype(words string) nftables.SetDatatype {
	return nftables.MustConcatSetType(nftables.ConcatSetTypeElements(nftables.SetDatatype{Name: words})...)
}

// ours returns our table of a family.
func ours(family byte) *nftables.Table { return tableOf(family, TableName) }

// tableOf returns the library's reference to a table.
func tableOf(family byte, name string) *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamily(family), Name: name}
}
