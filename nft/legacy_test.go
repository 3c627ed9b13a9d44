package nft_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/internal/kerneltest"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/internal/nfttest"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/spec"
)

// Rules that the reference leaves: with the nft backend for net1/cid1/eth0 and others, and with
// iptables-nft for net1/cid1, net1/p1 and net1/cid2.
const (
	oldNft = `
table inet cni_plugins_masquerade {
	chain masq_checks {
		ip saddr 10.1.0.2 ip daddr != 10.1.0.0/24 masquerade comment "8e48f37d5de60467-0b65a318f52e521b, net: net1, if: eth0, id: cid1"
		ip saddr 10.1.0.3 ip daddr != 10.1.0.0/24 masquerade comment "8e48f37d5de60467-ec3ff927478ce432, net: net1, if: eth0, id: cid2"
		ip saddr 10.9.0.2 ip daddr != 10.9.0.0/24 masquerade comment "a82b5f4c212dc8cf-0b65a318f52e521b, net: netp, if: eth0, id: cid1"
	}
	chain postrouting { type nat hook postrouting priority srcnat; goto masq_checks; }
}
table ip cni_hostport {
	chain hostports {
		tcp dport 8080 dnat to 10.1.0.2:80 comment "cid1"
		tcp dport 8081 dnat to 10.9.0.2:80 comment "cid1"
		tcp dport 8082 dnat to 10.1.0.3:80 comment "cid2"
	}
	chain hostip_hostports { }
	chain hostports_all { jump hostip_hostports; jump hostports; }
	chain prerouting { type nat hook prerouting priority dstnat; fib daddr type local jump hostports_all; }
	chain masquerading {
		type nat hook postrouting priority srcnat;
		ip saddr 10.1.0.2 ip daddr 10.1.0.2 masquerade comment "cid1"
		ip saddr 10.1.0.3 ip daddr 10.1.0.3 masquerade comment "cid2"
	}
}
table bridge nat {
	chain cni-br-iface-cid1-eth0-mac { ether saddr 02:00:00:00:00:01 return comment "macspoofchk-cid1-eth0"; drop comment "macspoofchk-cid1-eth0"; }
	chain cni-br-iface-cid1-eth0 { jump cni-br-iface-cid1-eth0-mac comment "macspoofchk-cid1-eth0"; }
	chain cni-br-iface-cid2-eth0 { drop comment "macspoofchk-cid2-eth0"; }
	chain PREROUTING {
		type filter hook prerouting priority -300;
		iifname "veth1" jump cni-br-iface-cid1-eth0 comment "macspoofchk-cid1-eth0"
		iifname "veth1" jump cni-br-iface-cid1-eth0 comment "macspoofchk-cid1-eth0"
		iifname "veth2" jump cni-br-iface-cid2-eth0 comment "macspoofchk-cid2-eth0"
	}
}`
	oldIptables = `*nat
:CNI-e8f6f419596f7f47b3468487 -
:CNI-HOSTPORT-DNAT -
:CNI-DN-c37c1b09cd1a8a00aefa6 -
:CNI-000000000000000000000000 -
-A CNI-e8f6f419596f7f47b3468487 -d 10.1.0.0/24 -m comment --comment "name: \"net1\" id: \"cid1\"" -j ACCEPT
-A CNI-e8f6f419596f7f47b3468487 ! -d 224.0.0.0/4 -m comment --comment "name: \"net1\" id: \"cid1\"" -j MASQUERADE
-A POSTROUTING -s 10.1.0.2/32 -m comment --comment "name: \"net1\" id: \"cid1\"" -j CNI-e8f6f419596f7f47b3468487
-A POSTROUTING -s 10.1.0.9/32 -m comment --comment "name: \"net1\" id: \"cid1\"" -j CNI-e8f6f419596f7f47b3468487
-A POSTROUTING -s 10.7.0.2/32 -m comment --comment "name: \"other\" id: \"cid7\"" -j CNI-000000000000000000000000
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"net1\" id: \"p1\"" -m multiport --dports 8080 -j CNI-DN-c37c1b09cd1a8a00aefa6
-A CNI-DN-c37c1b09cd1a8a00aefa6 -p tcp --dport 8080 -j DNAT --to-destination 10.1.0.4:80
COMMIT
`
)

func attachment(id string) spec.Attachment {
	return spec.Attachment{Network: "net1", ContainerID: id, IfName: "eth0"}
}

// referenceRules adds the rules of the reference to a namespace.
func referenceRules(t *testing.T) (*nft.Table, func(gone []string, kept ...string)) {
	ns := kerneltest.NS(t)
	kerneltest.Tool(t, ns, oldNft, "nft", "-f", "-")
	kerneltest.Tool(t, ns, oldIptables, "iptables-nft-restore")
	return open(t, ns), func(gone []string, kept ...string) {
		t.Helper()
		wantRules(t, ns, gone, kept)
	}
}

func wantRules(t *testing.T, ns *netns.NS, gone, kept []string) {
	t.Helper()
	text := nfttest.Ruleset(t, ns)
	for _, g := range gone {
		if strings.Contains(text, g) {
			t.Errorf("%q stayed in\n%s", g, text)
		}
	}
	for _, k := range kept {
		if !strings.Contains(text, k) {
			t.Errorf("%q went from\n%s", k, text)
		}
	}
}

var shared = []string{
	"chain masq_checks", "chain hostports ", "chain hostports_all", "chain CNI-HOSTPORT-DNAT", "jump CNI-HOSTPORT-DNAT",
	"chain PREROUTING", "table inet cni_plugins_masquerade", "8e48f37d5de60467-ec3ff927478ce432", "a82b5f4c212dc8cf-0b65a318f52e521b",
	`comment "cid2"`, "cni-br-iface-cid2-eth0", "CNI-000000000000000000000000",
}

func TestKernelReleaseReference(t *testing.T) {
	table, want := referenceRules(t)
	mustUpdate(t, table, func(x *nft.Tx) error {
		x.Release(attachment("cid1"))
		x.Release(attachment("p1"))
		return nil
	})
	want([]string{
		"8e48f37d5de60467-0b65a318f52e521b", `comment "cid1"`, "cid1-eth0",
		"CNI-e8f6f419596f7f47b3468487", "CNI-DN-c37c1b09cd1a8a00aefa6", "table inet cnibox",
	}, shared...)
	mustUpdate(t, table, func(x *nft.Tx) error { x.Release(attachment("cid1")); return nil })
}

// If the addresses are known, the rules of other networks are kept, and with iptables those of
// other interfaces in the network.
func TestKernelReleaseReferenceByAddress(t *testing.T) {
	table, want := referenceRules(t)
	mustUpdate(t, table, func(x *nft.Tx) error {
		x.Addresses(netip.MustParseAddr("10.1.0.2"))
		x.Release(attachment("cid1"))
		return nil
	})
	want([]string{"8e48f37d5de60467-0b65a318f52e521b", "ip saddr 10.1.0.2", "to 10.1.0.2"},
		append(shared, "jump CNI-e8f6f419596f7f47b3468487", "chain CNI-e8f6f419596f7f47b3468487", `comment "cid1"`)...)
	mustUpdate(t, table, func(x *nft.Tx) error {
		x.Addresses(netip.MustParseAddr("10.1.0.9"))
		x.Release(attachment("cid1"))
		return nil
	})
	want([]string{"CNI-e8f6f419596f7f47b3468487"}, shared...)
}

func TestKernelReleaseReferenceByKind(t *testing.T) {
	table, want := referenceRules(t)
	mustUpdate(t, table, func(x *nft.Tx) error { x.Release(attachment("cid1"), nft.KindMACGuard); return nil })
	want([]string{"cid1-eth0"}, append(shared, "8e48f37d5de60467-0b65a318f52e521b", `comment "cid1"`, "CNI-e8f6f419596f7f47b3468487")...)
}

func TestKernelDeleteStaleReference(t *testing.T) {
	table, want := referenceRules(t)
	mustUpdate(t, table, func(x *nft.Tx) error {
		x.DeleteStaleReference("net1", []spec.Attachment{attachment("cid1"), attachment("p1")})
		return nil
	})
	want([]string{"8e48f37d5de60467-ec3ff927478ce432"},
		"8e48f37d5de60467-0b65a318f52e521b", "CNI-e8f6f419596f7f47b3468487", "CNI-DN-c37c1b09cd1a8a00aefa6", "a82b5f4c212dc8cf")
	mustUpdate(t, table, func(x *nft.Tx) error { x.DeleteStaleReference("net1", nil); return nil })
	want([]string{"8e48f37d5de60467", "CNI-e8f6f419596f7f47b3468487", "CNI-DN-c37c1b09cd1a8a00aefa6"},
		"a82b5f4c212dc8cf", "CNI-000000000000000000000000", "CNI-HOSTPORT-DNAT")
}

// The guard rule of a port is deleted if the port is gone; others are kept.
func TestKernelDeleteStaleGuards(t *testing.T) {
	table, want := referenceRules(t)
	mustUpdate(t, table, func(x *nft.Tx) error {
		x.DeleteStaleGuards(func(port string) bool { return port == "veth2" })
		return nil
	})
	want([]string{"cid1-eth0"}, shared...)
	mustUpdate(t, table, func(x *nft.Tx) error { x.DeleteStaleGuards(func(string) bool { return false }); return nil })
	want([]string{"cid2-eth0"}, "chain PREROUTING")
}
