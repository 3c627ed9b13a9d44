package nft

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"cnibox/internal/nlconn"
)

// Attributes and messages of conntrack netlink, which x/sys does not have:
// include/uapi/linux/netfilter/nfnetlink_conntrack.h. The flags of a filter
// are bits by the kernel's net/netfilter/nf_internals.h, Linux 5.8.
const (
	ctGet, ctDelete = 1, 2 // IPCTNL_MSG_CT_GET, IPCTNL_MSG_CT_DELETE

	ctaTupleOrig, ctaTupleReply                           = 1, 2
	ctaID, ctaZone, ctaFilter                             = 12, 18, 25
	ctaTupleIP, ctaTupleProto                             = 1, 2
	ctaIPv4Src, ctaIPv4Dst, ctaIPv6Src, ctaIPv6Dst        = 1, 2, 3, 4
	ctaProtoNum, ctaProtoSrcPort, ctaProtoDstPort         = 1, 2, 3
	ctaFilterOrigFlags                                    = 1
	filterProtoNum, filterProtoDstPort             uint32 = 1 << 3, 1 << 5
)

// FlushUDP makes the kernel forget the UDP flows that were sent to one of the
// host ports, so that the next packet is translated anew: a flow that was
// there before its host port came, or after it went, would go astray for as
// long as packets follow each other. A port without an address, or with the
// unspecified one, means all addresses of its family; with the zero
// Addr, of both. A kernel without connection tracking has none to forget.
func (t *Table) FlushUDP(ports []netip.AddrPort) error {
	return t.flushUDP(ports, func([]byte, byte) bool { return true })
}

// FlushAstrayUDP is FlushUDP for the flows that were not translated, as those that began while
// the rule set was gone. The others go on.
func (t *Table) FlushAstrayUDP(ports []netip.AddrPort) error { return t.flushUDP(ports, untranslated) }

// flushUDP is FlushUDP for the flows that the function wants.
func (t *Table) flushUDP(ports []netip.AddrPort, want func(flow []byte, family byte) bool) error {
	if len(ports) == 0 {
		return nil
	}
	s, err := dial(t.ns)
	if err != nil {
		return err
	}
	defer s.Close()
	for _, family := range []byte{v4, v6} {
		targets := make(map[netip.AddrPort]bool, len(ports)) // the zero Addr is any
		for _, p := range ports {
			a := p.Addr().Unmap()
			if a.IsValid() && familyOf(a) != family {
				continue
			}
			if a.IsUnspecified() {
				a = netip.Addr{}
			}
			targets[netip.AddrPortFrom(a, p.Port())] = true
		}
		if len(targets) == 0 {
			continue
		}
		if err := s.flushUDP(family, targets, want); err != nil {
			return fmt.Errorf("conntrack: %w", err)
		}
	}
	return nil
}

// flushUDP deletes the flows of one family. Between reading and deleting some
// may end by themselves, which is as good.
func (s *sock) flushUDP(family byte, ports map[netip.AddrPort]bool, want func([]byte, byte) bool) error {
	var doomed [][]byte
	err := s.request(ctNetlink|ctGet, netlink.Dump, family, func(ae *netlink.AttributeEncoder) { filterUDP(ae, ports) }, func(_ byte, data []byte) {
		dst, udp := flowTo(data, family)
		if udp && (ports[dst] || ports[netip.AddrPortFrom(netip.Addr{}, dst.Port())]) && want(data, family) {
			doomed = append(doomed, data)
		}
	})
	// EINVAL: nothing listens for messages about connection tracking.
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	if err != nil {
		return explainUnsupported(err, "")
	}
	for _, data := range doomed {
		if err := s.forget(family, data); err != nil {
			return err
		}
	}
	return nil
}

// filterUDP asks for UDP flows only, and for one port if it is only one.
// Kernels before 5.8 overlook it, so the answers are filtered here as well.
func filterUDP(ae *netlink.AttributeEncoder, ports map[netip.AddrPort]bool) {
	flags := filterProtoNum
	ae.Nested(ctaTupleOrig, func(ae *netlink.AttributeEncoder) error {
		ae.Nested(ctaTupleProto, func(ae *netlink.AttributeEncoder) error {
			ae.Uint8(ctaProtoNum, unix.IPPROTO_UDP)
			for p := range ports {
				if len(ports) == 1 {
					flags |= filterProtoDstPort
					ae.Uint16(ctaProtoDstPort, p.Port())
				}
			}
			return nil
		})
		return nil
	})
	ae.Nested(ctaFilter, func(ae *netlink.AttributeEncoder) error {
		ae.Bytes(ctaFilterOrigFlags, native(flags))
		return nil
	})
}

// flowTo returns where the first packet of a flow was sent to, before any
// translation (CTA_TUPLE_ORIG), and whether it was UDP. What is missing or cut short
// comes as the zero address and port 0, which is not a host port.
func flowTo(data []byte, family byte) (dst netip.AddrPort, udp bool) {
	tuple := nlconn.Attribute(data, ctaTupleOrig)
	dst = flowEnd(tuple, family, ctaIPv4Dst, ctaIPv6Dst, ctaProtoDstPort)
	return dst, num(nlconn.Attribute(tuple, ctaTupleProto), ctaProtoNum) == unix.IPPROTO_UDP
}

// untranslated reports whether a flow is answered by the address that it was sent to.
func untranslated(data []byte, family byte) bool {
	to, _ := flowTo(data, family)
	return to == flowEnd(nlconn.Attribute(data, ctaTupleReply), family, ctaIPv4Src, ctaIPv6Src, ctaProtoSrcPort)
}

// flowEnd reads the address and port of a tuple that have these attributes.
func flowEnd(tuple []byte, family byte, typ4, typ6, port uint16) netip.AddrPort {
	typ := typ4
	if family == v6 {
		typ = typ6
	}
	addr := addrOf(nlconn.Attribute(nlconn.Attribute(tuple, ctaTupleIP), typ), family)
	return netip.AddrPortFrom(addr, uint16(num(nlconn.Attribute(tuple, ctaTupleProto), port)))
}

// forget deletes the flow that a message is about; one that has ended is fine. The
// identity goes along (CTA_ID), so that a new flow between the same ports, which
// may be translated as it should, is not taken for the old one.
func (s *sock) forget(family byte, data []byte) error {
	err := s.request(ctNetlink|ctDelete, netlink.Acknowledge, family, func(ae *netlink.AttributeEncoder) {
		ae.Bytes(ctaTupleOrig|netlink.Nested, nlconn.Attribute(data, ctaTupleOrig))
		for _, typ := range []uint16{ctaZone, ctaID} {
			if v := nlconn.Attribute(data, typ); v != nil {
				ae.Bytes(typ, v)
			}
		}
	}, func(byte, []byte) {})
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
