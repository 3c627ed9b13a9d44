package nft

import (
	"golang.org/x/sys/unix"

	"cnibox/internal/netlink"
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

// A datatype is what nft shows a key as: the number that its userland gives
// to the type (its include/datatype.h), which the kernel keeps and ignores.
type datatype uint32

const (
	ipv4Addr    datatype = 7
	ipv6Addr    datatype = 8
	etherAddr   datatype = 9
	inetProto   datatype = 12
	inetService datatype = 13
	ifName      datatype = 41
	verdictType          = 0xffffff00 // NFT_DATA_VERDICT, the kernel's own
	typeBits             = 6          // of each part of a concatenation
)

// size returns how many bytes the type takes within a key: parts of a
// concatenation fill whole registers.
func (t datatype) size() int {
	switch t {
	case ipv6Addr, ifName:
		return 16
	case etherAddr:
		return 8
	}
	return 4
}

// A set is one of our sets or maps. What it holds says its name. Kind and
// family are ours alone; the rest the kernel knows, and does not let be changed.
type set struct {
	name     string
	table    byte
	kind     Kind
	family   byte       // of the addresses in it; 0 if there are none
	key      []datatype // more than one: a concatenation
	data     []datatype // nil: no map
	verdicts bool       // a map to verdicts
}

// sets has all sets of both tables, in the order they are made.
//
// dnat: host port to target, for packets to any local address or (_host) to
// one. cond: the same for ports with conditions, which are found only through
// the chain that gate names for them. hairpin: connections that must be
// masqueraded to come back, by target. allow: addresses of containers, with the
// chain for the administrator's rules. zone: addresses that firewalld knows;
// no rule asks for them. managed, within, isolated: bridges with a policy, see
// [Tx.Police], whose members are in managed_by and isolated_by; gateways see
// [Tx.Gateway]. masq4_next, allow4_next, zone4_next: who is to have an address when its
// owner goes; enlisted: see [Tx.Enlist]; no rule asks for them. no_adverts: see
// [Tx.NoAdverts]. The order of a kind
// is the order of the constants below; IPv6 follows IPv4.
var sets = [...]set{
	{"masq4", inet, KindMasquerade, v4, []datatype{ipv4Addr}, nil, true},
	{"masq6", inet, KindMasquerade, v6, []datatype{ipv6Addr}, nil, true},
	{"dnat4", inet, KindPortMap, v4, []datatype{inetProto, inetService}, []datatype{ipv4Addr, inetService}, false},
	{"dnat6", inet, KindPortMap, v6, []datatype{inetProto, inetService}, []datatype{ipv6Addr, inetService}, false},
	{"dnat4_host", inet, KindPortMap, v4, []datatype{ipv4Addr, inetProto, inetService}, []datatype{ipv4Addr, inetService}, false},
	{"dnat6_host", inet, KindPortMap, v6, []datatype{ipv6Addr, inetProto, inetService}, []datatype{ipv6Addr, inetService}, false},
	{"cond4", inet, KindPortMap, v4, []datatype{inetProto, inetService}, []datatype{ipv4Addr, inetService}, false},
	{"cond6", inet, KindPortMap, v6, []datatype{inetProto, inetService}, []datatype{ipv6Addr, inetService}, false},
	{"cond4_host", inet, KindPortMap, v4, []datatype{ipv4Addr, inetProto, inetService}, []datatype{ipv4Addr, inetService}, false},
	{"cond6_host", inet, KindPortMap, v6, []datatype{ipv6Addr, inetProto, inetService}, []datatype{ipv6Addr, inetService}, false},
	{"gate4", inet, KindPortMap, v4, []datatype{inetProto, inetService}, nil, true},
	{"gate6", inet, KindPortMap, v6, []datatype{inetProto, inetService}, nil, true},
	{"gate4_host", inet, KindPortMap, v4, []datatype{ipv4Addr, inetProto, inetService}, nil, true},
	{"gate6_host", inet, KindPortMap, v6, []datatype{ipv6Addr, inetProto, inetService}, nil, true},
	{"hairpin4", inet, KindPortMap, v4, []datatype{ipv4Addr, inetProto, inetService}, nil, true},
	{"hairpin6", inet, KindPortMap, v6, []datatype{ipv6Addr, inetProto, inetService}, nil, true},
	{"guarded", bridge, KindMACGuard, 0, []datatype{ifName}, nil, false},
	{"macs", bridge, KindMACGuard, 0, []datatype{ifName, etherAddr}, nil, false},
	{"allow4", inet, KindFirewall, v4, []datatype{ipv4Addr}, nil, true},
	{"allow6", inet, KindFirewall, v6, []datatype{ipv6Addr}, nil, true},
	{"zone4", inet, KindZone, v4, []datatype{ipv4Addr}, nil, false},
	{"zone6", inet, KindZone, v6, []datatype{ipv6Addr}, nil, false},
	{"managed", inet, KindFirewall, 0, []datatype{ifName}, nil, false},
	{"within", inet, KindFirewall, 0, []datatype{ifName, ifName}, nil, false},
	{"isolated", inet, KindFirewall, 0, []datatype{ifName, ifName}, nil, false},
	{"isolated_ports", bridge, KindFirewall, 0, []datatype{ifName}, nil, false},
	{"managed_by", inet, KindFirewall, 0, []datatype{ifName, ifName}, nil, false},
	{"isolated_by", inet, KindFirewall, 0, []datatype{ifName, ifName}, nil, false},
	{"gateways", bridge, KindFirewall, 0, []datatype{ifName, ifName}, nil, false},
	{"masq4_next", inet, KindMasquerade, v4, []datatype{ifName, ipv4Addr}, nil, true},
	{"masq6_next", inet, KindMasquerade, v6, []datatype{ifName, ipv6Addr}, nil, true},
	{"allow4_next", inet, KindFirewall, v4, []datatype{ifName, ipv4Addr}, nil, true},
	{"allow6_next", inet, KindFirewall, v6, []datatype{ifName, ipv6Addr}, nil, true},
	{"zone4_next", inet, KindZone, v4, []datatype{ifName, ipv4Addr}, nil, false},
	{"zone6_next", inet, KindZone, v6, []datatype{ifName, ipv6Addr}, nil, false},
	{"enlisted", inet, KindFirewall, 0, []datatype{ifName}, nil, false},
	{"no_adverts", bridge, KindAdverts, 0, []datatype{ifName}, nil, false},
}

// Places in sets of those for IPv4; one further is that for IPv6.
const (
	masqSet    = 0
	dnatSet    = 2
	condSet    = 6
	gateSet    = 10
	hairpinSet = 14
	hostSets   = 2 // from a set for any address to that for one
	guardedSet = 16
	macsSet    = 17
	allowSet   = 18
	zoneSet    = 20

	managedSet      = 22 // bridge
	withinSet       = 23 // bridge . the same bridge, which is how a rule asks if two are one
	isolatedSet     = 24 // the same, of isolated bridges
	isolatedPortSet = 25 // ports of isolated members, for frames that are not routed
	managedBySet    = 26 // bridge . member
	isolatedBySet   = 27 // the same, of isolated members
	gatewaySet      = 28 // port of an isolated member . the port behind which its gateway is

	masqNextSet  = 29 // member . address that another network's has in masqSet
	allowNextSet = 31 // the same of allowSet
	zoneNextSet  = 33 // the same of zoneSet
	enlistedSet  = 35 // members

	advertSet = 36 // ports that may not send router advertisements
)

// setOf returns the set for the family; place is one of the constants above.
func setOf(place int, family byte) *set {
	if family == v6 {
		place++
	}
	return &sets[place]
}

// isMap tells maps from sets.
func (s *set) isMap() bool { return s.verdicts || s.data != nil }

// concat returns the number nft knows a concatenation by, 6 bits for each part, the
// first highest, and its length in bytes.
func concat(types []datatype) (magic uint32, size int) {
	for _, t := range types {
		magic = magic<<typeBits | uint32(t)
		size += t.size()
	}
	return magic, size
}

// define writes the attributes of NFT_MSG_NEWSET. The id names the set within its
// batch, and must differ from those of the others there.
func (s *set) define(b *netlink.Buf, id uint32) {
	magic, size := concat(s.key)
	b.Text(unix.NFTA_SET_TABLE, TableName)
	b.Text(unix.NFTA_SET_NAME, s.name)
	b.Net32(unix.NFTA_SET_KEY_TYPE, magic)
	b.Net32(unix.NFTA_SET_KEY_LEN, uint32(size))
	b.Net32(unix.NFTA_SET_ID, id)
	if s.key[0] == ifName {
		b.Bytes(unix.NFTA_SET_USERDATA, hostOrder())
	}
	if !s.isMap() {
		return
	}
	b.Net32(unix.NFTA_SET_FLAGS, unix.NFT_SET_MAP)
	if s.verdicts {
		b.Net32(unix.NFTA_SET_DATA_TYPE, verdictType)
		return
	}
	magic, size = concat(s.data)
	b.Net32(unix.NFTA_SET_DATA_TYPE, magic)
	b.Net32(unix.NFTA_SET_DATA_LEN, uint32(size))
}

// hostOrder tells nft's userland that the key begins with text; without it
// nft lists interface names as empty. It is NFTNL_UDATA_SET_KEYBYTEORDER with
// nft's BYTEORDER_HOST_ENDIAN: libnftnl, udata.h; nftables, datatype.h.
func hostOrder() []byte { return append([]byte{0, 4}, native(1)...) }
