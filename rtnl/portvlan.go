package rtnl

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"cnibox/internal/netlink"
)

// include/uapi/linux/if_bridge.h: IFLA_BRIDGE_VLAN_INFO and BRIDGE_VLAN_INFO_*.
const (
	bridgeVLANInfo = 2

	vlanPVID       = 1 << 1
	vlanUntagged   = 1 << 2
	vlanRangeBegin = 1 << 3
	vlanRangeEnd   = 1 << 4
)

// rtextVLANCompressed is RTEXT_FILTER_BRVLAN_COMPRESSED, include/uapi/linux/rtnetlink.h:
// VLANs are told as ranges.
const rtextVLANCompressed = 1 << 2

// maxVLAN is the last VLAN that a bridge port can be in.
const maxVLAN = 4094

// A VLANRange is a run of VLANs that a bridge port takes part in.
type VLANRange struct {
	From, To int  // 1 to 4094, both belong to it; To 0: From alone
	PVID     bool // packets that come without a tag belong to it; single VLANs only
	Untagged bool // its packets leave without a tag
}

// NewPortVLANs makes a bridge port take part in VLANs, in one message. The
// bridge must filter VLANs for that to have an effect; the error answers
// errors.Is for unix.EOPNOTSUPP if the kernel cannot do that at all.
func NewPortVLANs(index uint32, vlans []VLANRange) Op {
	return vlanOp("add", index, vlans, unix.RTM_SETLINK)
}

// DropPortVLANs takes a bridge port out of VLANs.
func DropPortVLANs(index uint32, vlans []VLANRange) Op {
	return vlanOp("delete", index, vlans, unix.RTM_DELLINK)
}

// vlanOp builds the message, which is one of family AF_BRIDGE. It is unix.EINVAL
// for VLANs out of bounds, and for a range that is to be the PVID: a port has one
// VLAN for packets without a tag.
func vlanOp(verb string, index uint32, vlans []VLANRange, typ uint16) Op {
	text := fmt.Sprintf("bridge vlan %s dev #%d", verb, index)
	for _, v := range vlans {
		v.To = max(v.From, v.To)
		text += fmt.Sprintf(" vid %d-%d", v.From, v.To)
		if v.From < 1 || v.To > maxVLAN || v.PVID && v.From != v.To {
			return Op{text: text, err: unix.EINVAL}
		}
	}
	data := encode(linkHeader(unix.AF_BRIDGE, index, 0, 0), func(b *netlink.Buf) {
		b.Nest(unix.IFLA_AF_SPEC, func() {
			for _, v := range vlans {
				v.encode(b)
			}
		})
	})
	return newOp(text, typ, ack, data, nil)
}

// encode writes one struct bridge_vlan_info, or two for a range.
func (v VLANRange) encode(b *netlink.Buf) {
	var flags uint16
	if v.PVID {
		flags |= vlanPVID
	}
	if v.Untagged {
		flags |= vlanUntagged
	}
	info := func(flags uint16, id int) {
		v := binary.NativeEndian.AppendUint16(nil, flags)
		b.Bytes(bridgeVLANInfo, binary.NativeEndian.AppendUint16(v, uint16(id)))
	}
	if v.To <= v.From {
		info(flags, v.From)
		return
	}
	info(flags|vlanRangeBegin, v.From)
	info(flags|vlanRangeEnd, v.To)
}

// PortVLANs returns the VLANs that a bridge port takes part in; none if the
// bridge does not filter or the link is no port.
func (c *Conn) PortVLANs(index uint32) ([]VLANRange, error) {
	data := encode(linkHeader(unix.AF_BRIDGE, 0, 0, 0), func(b *netlink.Buf) {
		b.U32(unix.IFLA_EXT_MASK, rtextVLANCompressed)
	})
	var all []VLANRange
	// The kernel cannot be asked for one port.
	err := c.dump(netlink.Request{Type: unix.RTM_GETLINK, Data: data}, func(m netlink.Message) error {
		of, vlans, err := decodePortVLANs(m.Data)
		if of == index {
			all = append(all, vlans...)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("bridge vlans of link #%d: %w", index, err)
	}
	return all, nil
}

// decodePortVLANs reads an RTM_NEWLINK message of family AF_BRIDGE.
func decodePortVLANs(b []byte) (index uint32, vlans []VLANRange, err error) {
	if len(b) < unix.SizeofIfInfomsg {
		return 0, nil, errMalformed
	}
	for a := netlink.Attrs(netlink.Attr(b[unix.SizeofIfInfomsg:], unix.IFLA_AF_SPEC)); a.Next(); {
		typ, info := a.Type, a.Value
		if typ != bridgeVLANInfo {
			continue
		}
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
	return binary.NativeEndian.Uint32(b[4:]), vlans, nil
}
