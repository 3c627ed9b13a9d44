package rtnl

import (
	"encoding/binary"
	"fmt"

	"github.com/jsimonetti/rtnetlink/v2"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/nlconn"
)

// Attributes and flags of include/uapi/linux/if_bridge.h: IFLA_BRIDGE_VLAN_INFO and
// BRIDGE_VLAN_INFO_*.
const (
	bridgeVLANInfo = 2

	vlanPVID       = 1 << 1
	vlanUntagged   = 1 << 2
	vlanRangeBegin = 1 << 3
	vlanRangeEnd   = 1 << 4
)

// rtextVLANCompressed is RTEXT_FILTER_BRVLAN_COMPRESSED, include/uapi/linux/rtnetlink.h: the kernel
// reports VLANs as ranges.
const rtextVLANCompressed = 1 << 2

// maxVLAN is the last VLAN that a bridge port can be in.
const maxVLAN = 4094

// A VLANRange is a range of VLANs in which a bridge port takes part.
type VLANRange struct {
	From, To int  // 1 to 4094, inclusive; To 0: only From
	PVID     bool // untagged ingress packets belong to it; single VLANs only
	Untagged bool // its packets leave untagged
}

// NewPortVLANs adds VLANs to a bridge port, in one message. They have an effect only if the bridge
// filters VLANs. The error matches unix.EOPNOTSUPP if the kernel cannot filter VLANs.
func NewPortVLANs(index uint32, vlans []VLANRange) Op {
	return vlanOp("add", index, vlans, unix.RTM_SETLINK)
}

// DropPortVLANs deletes VLANs from a bridge port.
func DropPortVLANs(index uint32, vlans []VLANRange) Op {
	return vlanOp("delete", index, vlans, unix.RTM_DELLINK)
}

// vlanOp builds the message, of family AF_BRIDGE. The error is unix.EINVAL for VLANs out of bounds,
// and for a range with PVID: a port has one VLAN for untagged packets.
func vlanOp(verb string, index uint32, vlans []VLANRange, typ netlink.HeaderType) Op {
	text := fmt.Sprintf("bridge vlan %s dev #%d", verb, index)
	for _, v := range vlans {
		v.To = max(v.From, v.To)
		text += fmt.Sprintf(" vid %d-%d", v.From, v.To)
		if v.From < 1 || v.To > maxVLAN || v.PVID && v.From != v.To {
			return Op{text: text, err: unix.EINVAL}
		}
	}
	data, err := encode(bridgeHeader(index), func(ae *netlink.AttributeEncoder) {
		nest(ae, unix.IFLA_AF_SPEC, func(ae *netlink.AttributeEncoder) {
			for _, v := range vlans {
				v.encode(ae)
			}
		})
	})
	return newOp(text, typ, ack, data, err)
}

// bridgeHeader returns a struct ifinfomsg of family AF_BRIDGE; the library always sets AF_UNSPEC.
func bridgeHeader(index uint32) []byte {
	b := make([]byte, unix.SizeofIfInfomsg)
	b[0] = unix.AF_BRIDGE
	binary.NativeEndian.PutUint32(b[4:], index)
	return b
}

// encode writes one struct bridge_vlan_info, or two for a range.
func (v VLANRange) encode(ae *netlink.AttributeEncoder) {
	var flags uint16
	if v.PVID {
		flags |= vlanPVID
	}
	if v.Untagged {
		flags |= vlanUntagged
	}
	info := func(flags uint16, id int) {
		v := binary.NativeEndian.AppendUint16(nil, flags)
		ae.Bytes(bridgeVLANInfo, binary.NativeEndian.AppendUint16(v, uint16(id)))
	}
	if v.To <= v.From {
		info(flags, v.From)
		return
	}
	info(flags|vlanRangeBegin, v.From)
	info(flags|vlanRangeEnd, v.To)
}

// PortVLANs returns the VLANs of a bridge port; none if the bridge does not filter VLANs or the
// link is not a port.
func (c *Conn) PortVLANs(index uint32) ([]VLANRange, error) {
	fail := func(err error) ([]VLANRange, error) {
		return nil, fmt.Errorf("bridge vlans of link #%d: %w", index, err)
	}
	// The kernel cannot filter this dump by port.
	data, err := encode(bridgeHeader(0), func(ae *netlink.AttributeEncoder) {
		ae.Uint32(unix.IFLA_EXT_MASK, rtextVLANCompressed)
	})
	if err != nil {
		return fail(err)
	}
	ms, err := c.dump(request(unix.RTM_GETLINK, 0, data))
	if err != nil {
		return fail(err)
	}
	var all []VLANRange
	for _, m := range ms {
		link, vlans, err := decodePortVLANs(m.Data)
		if err != nil {
			return fail(err)
		}
		if link == index {
			all = append(all, vlans...)
		}
	}
	return all, nil
}

// decodePortVLANs decodes an RTM_NEWLINK message of family AF_BRIDGE.
func decodePortVLANs(b []byte) (index uint32, vlans []VLANRange, err error) {
	var m rtnetlink.LinkMessage
	if len(b) < unix.SizeofIfInfomsg || m.UnmarshalBinary(b[:unix.SizeofIfInfomsg]) != nil {
		return 0, nil, errMalformed
	}
	ad, err := netlink.NewAttributeDecoder(nlconn.Attribute(b[unix.SizeofIfInfomsg:], unix.IFLA_AF_SPEC))
	if err != nil {
		return 0, nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	for ad.Next() {
		if ad.Type() != bridgeVLANInfo {
			continue
		}
		info := ad.Bytes() // struct bridge_vlan_info
		if len(info) < 4 {
			return 0, nil, errMalformed
		}
		flags, id := binary.NativeEndian.Uint16(info), int(binary.NativeEndian.Uint16(info[2:]))
		if flags&vlanRangeEnd != 0 && len(vlans) > 0 {
			vlans[len(vlans)-1].To = id
			continue
		}
		vlans = append(vlans, VLANRange{
			From: id, To: id,
			PVID: flags&vlanPVID != 0, Untagged: flags&vlanUntagged != 0,
		})
	}
	return m.Index, vlans, ad.Err()
}
