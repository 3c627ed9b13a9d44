package nft

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/nlconn"

	"github.com/cnibox/cnibox/nft/internal/wire"
)

// Attributes and messages of conntrack netlink that x/sys lacks:
// include/uapi/linux/netfilter/nfnetlink_conntrack.h. The filter flags are bits of the kernel's
// net/netfilter/nf_internals.h, Linux 5.8.
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

// FlushUDP deletes the conntrack entries of UDP flows to the host ports, so that the next packet is
// translated by the current rules. An entry older than its host port, or than the removal of the
// port, would send packets to the wrong destination as long as they follow each other. A port with
// the unspecified address means all addresses of the family, with the zero Addr those of both
// families. It is not an error if the kernel lacks connection tracking.
func (t *Table) FlushUDP(ports []netip.AddrPort) error {
	return t.flushUDP(ports, func([]byte, byte) bool { return true })
}

// FlushAstrayUDP is FlushUDP for flows that none of the addresses answers: they are not translated, as
// flows that began while the rule set was missing, or lead to another container. It returns their
// number. Other flows are not changed.
func (t *Table) FlushAstrayUDP(ports []netip.AddrPort, answering ...netip.Addr) (n int, err error) {
	err = t.flushUDP(ports, func(flow []byte, family byte) bool {
		astray := !slices.Contains(answering, answeredFrom(flow, family))
		if astray {
			n++
		}
		return astray
	})
	return n, err
}

// flushUDP is FlushUDP for the flows that want selects.
func (t *Table) flushUDP(ports []netip.AddrPort, want func(flow []byte, family byte) bool) error {
	if len(ports) == 0 {
		return nil
	}
	s, err := t.dial()
	if err != nil {
		return err
	}
	defer s.Close()
	for _, family := range []byte{v4, v6} {
		targets := make(map[netip.AddrPort]bool, len(ports)) // the zero Addr is any address
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

// flushUDP deletes the flows of one family. A flow that ends between the dump and its deletion is
// not an error.
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
		return wire.Explain(err, "")
	}
	for _, data := range doomed {
		if err := s.forget(family, data); err != nil {
			return err
		}
	}
	return nil
}

// filterUDP requests UDP flows only, and one port only if there is only one. Kernels before 5.8
// ignore the filter, so the answers are filtered here as well.
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

// flowTo returns the destination of a flow's first packet before any translation (CTA_TUPLE_ORIG),
// and whether it is UDP. Missing or truncated attributes give the zero address and port 0, which is
// not a host port.
func flowTo(data []byte, family byte) (dst netip.AddrPort, udp bool) {
	tuple := nlconn.Attribute(data, ctaTupleOrig)
	dst = flowEnd(tuple, family, ctaIPv4Dst, ctaIPv6Dst, ctaProtoDstPort)
	return dst, num(nlconn.Attribute(tuple, ctaTupleProto), ctaProtoNum) == unix.IPPROTO_UDP
}

// answeredFrom returns the address from which a flow is answered, before that is translated back.
func answeredFrom(data []byte, family byte) netip.Addr {
	return flowEnd(nlconn.Attribute(data, ctaTupleReply), family, ctaIPv4Src, ctaIPv6Src, ctaProtoSrcPort).Addr()
}

// flowEnd reads the address and the port of a tuple from the given attribute types.
func flowEnd(tuple []byte, family byte, typ4, typ6, port uint16) netip.AddrPort {
	typ := typ4
	if family == v6 {
		typ = typ6
	}
	addr := addrOf(nlconn.Attribute(nlconn.Attribute(tuple, ctaTupleIP), typ), family)
	return netip.AddrPortFrom(addr, uint16(num(nlconn.Attribute(tuple, ctaTupleProto), port)))
}

// forget deletes the flow of a message; it is not an error if the flow has ended. The request
// contains the flow's ID (CTA_ID), so that the kernel does not delete a new, correctly translated
// flow between the same ports.
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
