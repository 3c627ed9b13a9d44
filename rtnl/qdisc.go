package rtnl

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"os"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/nlconn"
)

// Parents and handles of queueing disciplines: include/uapi/linux/pkt_sched.h, TC_H_* and handles
// as tc(8) writes them.
const (
	tcRoot      = 0xffffffff // TC_H_ROOT
	tcIngress   = 0xfffffff1 // TC_H_INGRESS, the same as TC_H_CLSACT
	tcInFilters = 0xfffffff2 // TC_H_INGRESS | TC_H_MIN_INGRESS: filters of received packets

	ingressHandle = 0xffff0000 // ffff:
	tbfHandle     = 0x00010000 // 1:
	tbfClass      = 0x00010001 // 1:1, the only class of a token bucket
)

// Attributes and options of include/uapi/linux/pkt_sched.h.
const (
	tbfParms  = 1 // TCA_TBF_PARMS, struct tc_tbf_qopt
	tbfRate64 = 4 // TCA_TBF_RATE64
	tbfBurst  = 6 // TCA_TBF_BURST

	fqCodelMemory = 9 // TCA_FQ_CODEL_MEMORY_LIMIT

	tcHeaderSize      = 20 // of struct tcmsg, include/uapi/linux/rtnetlink.h
	linkLayerEthernet = 1  // TC_LINKLAYER_ETHERNET: no rate table is needed
	tbfParmsSize      = 36 // of struct tc_tbf_qopt
	nsPerTick         = 64 // PSCHED_SHIFT, include/net/pkt_sched.h
)

// A TBF is a token bucket filter, tc-tbf(8): it sends at Rate in the long run and Burst at once,
// and queues packets above that.
type TBF struct {
	Rate  uint64 // bytes per second, not 0
	Burst uint32 // bytes; a longer packet is never sent
	Limit uint32 // size of the queue in bytes, including packets that are about to be sent

	ticks uint32 // the burst as the kernel reports it; 0: not from the kernel
}

// A Qdisc is a queueing discipline of a link.
type Qdisc struct {
	Kind string // as in tc(8); "ingress" and "clsact" have no queue
	TBF  TBF    // of kind tbf; see [TBF.Same]
}

// NewTBF adds a token bucket for all packets that a link sends; os.ErrExist if the link has a
// discipline other than the kernel's default.
func NewTBF(index uint32, t TBF) Op { return tbfOp("add", index, t, create) }

// ReplaceTBF is NewTBF, or changes the token bucket that NewTBF added.
func ReplaceTBF(index uint32, t TBF) Op { return tbfOp("replace", index, t, replace) }

// NewIngress adds the ingress qdisc, which filters of received packets need; os.ErrExist if the
// link has it.
func NewIngress(index uint32) Op {
	return qdiscOp("add", index, tcIngress, ingressHandle, "ingress", create, nil)
}

// NewFQCodel replaces the plain queue of a link's token bucket by fair queueing with controlled
// delay, tc-fq_codel(8). memory is its limit in bytes; the kernel counts about two for each byte of
// a packet. The error is os.ErrNotExist if the kernel lacks the discipline.
func NewFQCodel(index, memory uint32) Op {
	return qdiscOp("replace", index, tbfClass, 0, "fq_codel", replace, func(ae *netlink.AttributeEncoder) {
		ae.Uint32(fqCodelMemory, memory)
	})
}

// DropRootQdisc restores the kernel's default discipline of a link. The error is os.ErrNotExist if
// the link has it already.
func DropRootQdisc(index uint32) Op {
	return dropQdisc(index, tcRoot)
}

// DropIngress deletes the ingress qdisc of a link with its filters. The error is os.ErrNotExist if
// the link has none.
func DropIngress(index uint32) Op {
	return dropQdisc(index, tcIngress)
}

// tbfOp builds the message for a token bucket at the root.
func tbfOp(verb string, index uint32, t TBF, flags netlink.HeaderFlags) Op {
	op := qdiscOp(verb, index, tcRoot, tbfHandle, "tbf", flags, t.options)
	if t.Rate == 0 || t.Burst == 0 {
		op.err = fmt.Errorf("rate %d, burst %d: %w", t.Rate, t.Burst, unix.EINVAL)
	}
	return op
}

// options writes struct tc_tbf_qopt. The kernel takes the burst in bytes from TCA_TBF_BURST, and
// then ignores the burst as a time, which depends on the length of the kernel's ticks.
func (t TBF) options(ae *netlink.AttributeEncoder) {
	p := make([]byte, tbfParmsSize) // struct tc_ratespec twice, limit, buffer, mtu
	p[1] = linkLayerEthernet
	binary.NativeEndian.PutUint32(p[8:], uint32(min(t.Rate, math.MaxUint32)))
	binary.NativeEndian.PutUint32(p[24:], t.Limit)
	ae.Bytes(tbfParms, p)
	ae.Uint32(tbfBurst, t.Burst)
	if t.Rate > math.MaxUint32 {
		ae.Uint64(tbfRate64, t.Rate)
	}
}

// Same reports whether a token bucket that was read equals t, except for the kernel's rounding: the
// kernel keeps the burst as a transmission time, and reports the lower 32 bits of it in ticks of 64
// ns.
func (t TBF) Same(read TBF) bool {
	if t.Rate == 0 || t.Rate != read.Rate || t.Limit != read.Limit {
		return false
	}
	ticks := uint64(t.Burst) * (1e9 / nsPerTick) / t.Rate
	off := int32(uint32(ticks) - read.ticks)
	return uint64(max(off, -off)) <= ticks>>20+1
}

// qdiscOp builds struct tcmsg and its attributes; options may be nil.
func qdiscOp(verb string, index, parent, handle uint32, kind string, flags netlink.HeaderFlags, options func(*netlink.AttributeEncoder)) Op {
	data, err := encode(tcHeader(index, handle, parent, 0), func(ae *netlink.AttributeEncoder) {
		ae.String(unix.TCA_KIND, kind)
		if options != nil {
			nest(ae, unix.TCA_OPTIONS, options)
		}
	})
	text := fmt.Sprintf("qdisc %s dev #%d %s", verb, index, kind)
	return newOp(text, unix.RTM_NEWQDISC, flags, data, cmp.Or(tcLink(index), err))
}

// dropQdisc deletes the qdisc of a parent.
func dropQdisc(index, parent uint32) Op {
	text := fmt.Sprintf("qdisc delete dev #%d parent %x:%x", index, parent>>16, parent&0xffff)
	return newOp(text, unix.RTM_DELQDISC, ack, tcHeader(index, 0, parent, 0), tcLink(index))
}

// tcHeader returns a struct tcmsg, include/uapi/linux/rtnetlink.h.
func tcHeader(index, handle, parent, info uint32) []byte {
	b := make([]byte, 4, tcHeaderSize) // the family AF_UNSPEC and padding
	for _, v := range [...]uint32{index, handle, parent, info} {
		b = binary.NativeEndian.AppendUint32(b, v)
	}
	return b
}

// tcLink rejects the index 0, which the kernel uses for a shared block.
func tcLink(index uint32) error {
	if index == 0 {
		return os.ErrNotExist
	}
	return nil
}

// Qdiscs returns the qdisc for packets that a link sends and the one for packets that it receives;
// nil: the kernel's default. It needs one send.
func (c *Conn) Qdiscs(index uint32) (root, ingress *Qdisc, err error) {
	fail := func(err error) (*Qdisc, *Qdisc, error) {
		return nil, nil, fmt.Errorf("qdiscs of link #%d: %w", index, err)
	}
	var reqs []netlink.Message
	for _, parent := range [...]uint32{tcRoot, tcIngress} {
		// Before Linux 6.8 the answer is a notification, which needs NLM_F_ECHO.
		reqs = append(reqs, request(unix.RTM_GETQDISC, netlink.Echo|netlink.Acknowledge, tcHeader(index, 0, parent, 0)))
	}
	answers, err := c.c.Batch(reqs, 0)
	if err != nil {
		return fail(err)
	}
	found := [2]*Qdisc{}
	for i, a := range answers {
		if err := SkipAbsent(asNotExist(a.Err, reqs[i].Header.Type)); err != nil {
			return fail(err)
		}
		for _, m := range a.Messages {
			q, handle, err := decodeQdisc(m.Data)
			if err != nil {
				return fail(err)
			}
			if handle != 0 { // the kernel's default qdiscs have handle 0
				found[i] = q
			}
		}
	}
	return found[0], found[1], nil
}

// IngressLinks returns the links with an ingress qdisc.
func (c *Conn) IngressLinks() (links []uint32, err error) {
	ms, err := c.dump(request(unix.RTM_GETQDISC, 0, tcHeader(0, 0, 0, 0)))
	if err != nil {
		return nil, fmt.Errorf("qdiscs: %w", err)
	}
	for _, m := range ms {
		q, _, err := decodeQdisc(m.Data)
		if err != nil {
			return nil, fmt.Errorf("qdiscs: %w", err)
		}
		if q.Kind == "ingress" || q.Kind == "clsact" {
			links = append(links, binary.NativeEndian.Uint32(m.Data[4:]))
		}
	}
	return links, nil
}

// decodeQdisc decodes an RTM_NEWQDISC message and also returns the handle.
func decodeQdisc(b []byte) (*Qdisc, uint32, error) {
	if len(b) < tcHeaderSize {
		return nil, 0, errMalformed
	}
	attrs := b[tcHeaderSize:]
	q := &Qdisc{Kind: cString(nlconn.Attribute(attrs, unix.TCA_KIND))}
	if q.Kind == "tbf" {
		q.TBF.decode(nlconn.Attribute(attrs, unix.TCA_OPTIONS))
	}
	return q, binary.NativeEndian.Uint32(b[8:]), nil
}

// decode decodes the options of a token bucket. The kernel's rounding changes the burst slightly.
func (t *TBF) decode(options []byte) {
	p := nlconn.Attribute(options, tbfParms)
	if len(p) < tbfParmsSize {
		return
	}
	t.Rate = uint64(binary.NativeEndian.Uint32(p[8:]))
	if wide := nlconn.Attribute(options, tbfRate64); len(wide) == 8 {
		t.Rate = binary.NativeEndian.Uint64(wide)
	}
	t.Limit = binary.NativeEndian.Uint32(p[24:])
	t.ticks = binary.NativeEndian.Uint32(p[28:])
	t.Burst = uint32(min(float64(t.ticks)*nsPerTick/1e9*float64(t.Rate), math.MaxUint32))
}
