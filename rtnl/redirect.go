package rtnl

import (
	"cmp"
	"encoding/binary"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/nlconn"
)

// Numbers of filters and actions: include/uapi/linux/pkt_cls.h and
// include/uapi/linux/tc_act/tc_mirred.h.
const (
	u32ClassID = 1 // TCA_U32_CLASSID
	u32Sel     = 5 // TCA_U32_SEL, struct tc_u32_sel
	u32Act     = 7 // TCA_U32_ACT

	actKind    = 1 // TCA_ACT_KIND
	actOptions = 2 // TCA_ACT_OPTIONS

	mirredParms    = 2  // TCA_MIRRED_PARMS, struct tc_mirred
	mirredSize     = 28 // of struct tc_mirred
	actStolen      = 4  // TC_ACT_STOLEN: a redirected packet goes nowhere else
	egressRedirect = 1  // TCA_EGRESS_REDIR
	inRedirect     = 3  // TCA_INGRESS_REDIR

	redirectPrio = 1 // the priority that the reference uses
)

// NewRedirect redirects all packets that a link receives to another link, which sends them. The
// receiving link needs [NewIngress]. The filter is of kind u32 and matches everything; older
// kernels lack the kind matchall.
func NewRedirect(index, to uint32) Op { return redirect(index, to, egressRedirect) }

// NewInjection is NewRedirect to another link as if that had received the packets.
func NewInjection(index, to uint32) Op { return redirect(index, to, inRedirect) }

func redirect(index, to, how uint32) Op {
	data, err := encode(redirectHeader(index), func(ae *netlink.AttributeEncoder) {
		ae.String(unix.TCA_KIND, "u32")
		nest(ae, unix.TCA_OPTIONS, func(ae *netlink.AttributeEncoder) {
			ae.Uint32(u32ClassID, tbfClass)
			nest(ae, u32Act, func(ae *netlink.AttributeEncoder) {
				nest(ae, 1, func(ae *netlink.AttributeEncoder) { encodeMirred(ae, to, how) })
			})
			ae.Bytes(u32Sel, matchAll())
		})
	})
	text := fmt.Sprintf("filter add dev #%d redirect dev #%d", index, to)
	return newOp(text, unix.RTM_NEWTFILTER, create, data, cmp.Or(tcLink(index), err))
}

// DropRedirects deletes the filters of NewRedirect from a link, os.ErrNotExist if there are none.
func DropRedirects(index uint32) Op {
	data, err := encode(redirectHeader(index), func(ae *netlink.AttributeEncoder) { ae.String(unix.TCA_KIND, "u32") })
	return newOp(fmt.Sprintf("filter delete dev #%d", index), unix.RTM_DELTFILTER, ack, data, cmp.Or(tcLink(index), err))
}

// redirectHeader returns the struct tcmsg of the filter: one number has the priority and then the
// protocol in network byte order.
func redirectHeader(index uint32) []byte {
	all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	return tcHeader(index, 0, tcInFilters, redirectPrio<<16|uint32(all))
}

// matchAll returns a struct tc_u32_sel with one struct tc_u32_key, whose mask is 0. The match is
// terminal: there is no further hash table.
func matchAll() []byte {
	const terminal = 1 // TC_U32_TERMINAL
	sel := make([]byte, 16+16)
	sel[0], sel[2] = terminal, 1 // flags, number of keys
	return sel
}

// encodeMirred writes the action: struct tc_mirred has five numbers that all actions have, then the
// action's type and the link.
func encodeMirred(ae *netlink.AttributeEncoder, to, how uint32) {
	p := make([]byte, mirredSize)
	binary.NativeEndian.PutUint32(p[8:], actStolen)
	binary.NativeEndian.PutUint32(p[20:], how)
	binary.NativeEndian.PutUint32(p[24:], to)
	ae.String(actKind, "mirred")
	nest(ae, actOptions, func(ae *netlink.AttributeEncoder) { ae.Bytes(mirredParms, p) })
}

// Redirects returns the links to which all packets that a link receives are redirected, also by
// filters of other programs; the first link receives the packets. A deleted link is 0.
func (c *Conn) Redirects(index uint32) (to []uint32, err error) {
	ms, err := c.dump(request(unix.RTM_GETTFILTER, 0, tcHeader(index, 0, tcInFilters, 0)))
	if err != nil {
		return nil, fmt.Errorf("filters of link #%d: %w", index, err)
	}
	for _, m := range ms {
		if len(m.Data) < tcHeaderSize {
			return nil, errMalformed
		}
		attrs := m.Data[tcHeaderSize:]
		if cString(nlconn.Attribute(attrs, unix.TCA_KIND)) == "u32" {
			to = append(to, decodeRedirect(nlconn.Attribute(attrs, unix.TCA_OPTIONS))...)
		}
	}
	return to, nil
}

// decodeRedirect decodes the targets of one filter of kind u32; none if it matches only some
// packets.
func decodeRedirect(options []byte) (to []uint32) {
	sel := nlconn.Attribute(options, u32Sel)
	if len(sel) < 32 || binary.NativeEndian.Uint32(sel[16:]) != 0 {
		return nil
	}
	ad, err := netlink.NewAttributeDecoder(nlconn.Attribute(options, u32Act))
	for err == nil && ad.Next() {
		p := nlconn.Attribute(nlconn.Attribute(ad.Bytes(), actOptions), mirredParms)
		if len(p) >= mirredSize && binary.NativeEndian.Uint32(p[20:]) == egressRedirect {
			to = append(to, binary.NativeEndian.Uint32(p[24:]))
		}
	}
	return to
}
