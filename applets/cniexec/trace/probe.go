package trace

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/nft/foreign"
	"github.com/cnibox/cnibox/rtnl"
)

// A Probe is a packet that is sent to learn what this host does with it: a SYN of TCP, a datagram of UDP, or an echo
// request of ICMP.
type Probe struct {
	From  *netns.NS  // nil: it comes from outside
	In    *rtnl.Link // the link of this host by which it comes from outside
	Proto uint8
	Src   netip.Addr // a probe with From is sent only if this is the address that its route chooses
	Dst   netip.AddrPort
}

// An Ending is where a probe has ended on this host.
type Ending struct {
	Hook  string // the last one; empty: the probe was not sent, or has not come
	Rules []Rule // of all hooks
	Drop  *Rule  // nil: neither a rule nor a policy has dropped it
	Lost  *Trace // how it was lost otherwise; nil: it was not, or that is not known
}

const (
	probeTime = time.Second          // how long a probe may take to its end, or a neighbour to answer
	probeStep = 2 * time.Millisecond // between two looks
	probeTTL  = 2                    // hops; the next router would discard it
	probePort = 50007                // source port
	probeWave = 20                   // probes at a time: their messages must fit into the receive buffer
	wavesTime = time.Second          // how long waves wait for those before them, all together
)

// A prober has sent probes.
type prober struct {
	follower
	probes []Probe
	tag    foreign.Tag
	done   []bool // not sent, or ended
	ways   []way
	heard  [][]foreign.Traced // messages by probe
	of     map[uint32]uint16  // which probe an ID is of: only the first message of a chain has the packet
	read   int                // how many of the messages are sorted
	host   *site
	tuns   map[uint32]*os.File // whose packets come in by the link with this index
}

// Send sends probes, all at once, and returns their endings in the same order. No probe leaves this host: see
// [foreign.Tag]. The first error is why some were not sent, or not followed to their end. The second one has code [spec.CodeHost] before Linux
// 5.12, as that of [foreign.Trace].
func Send(ctx context.Context, probes []Probe) (endings []Ending, outside, err error) {
	p := &prober{probes: probes, done: make([]bool, len(probes)), ways: make([]way, len(probes)), heard: make([][]foreign.Traced, len(probes)), of: map[uint32]uint16{}, tuns: map[uint32]*os.File{}}
	rand.Read(p.tag[:])
	here := Place{Name: "host", NS: netns.Host(), Flow: foreign.Flow{Tag: &p.tag}}
	p.Places, p.changed = []Place{here}, make(chan struct{}, 1)
	defer p.close()
	if err := p.begin(); err != nil {
		return nil, nil, err
	}
	if p.host, err = openSite(here, way{}, p.tracers[0]); err != nil {
		return nil, nil, err
	}
	p.sites = append(p.sites, p.host)
	defer func() {
		for _, tun := range p.tuns {
			tun.Close()
		}
	}()
	err = p.listenDuring(ctx, func(ctx context.Context) (err error) {
		outside, err = p.send(ctx)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	p.sort()
	missed := p.tracers[0].Missed()
	for i := range probes {
		e, err := p.ending(i, missed)
		if err != nil {
			return nil, nil, err
		}
		endings = append(endings, e)
	}
	if missed {
		outside = errors.New("the kernel has dropped messages")
	}
	return endings, outside, nil
}

// send sends all probes, and waits for their ends. The first error is about those from outside.
func (p *prober) send(ctx context.Context) (outside, err error) {
	left := wavesTime
	for i := range p.probes {
		if err := p.sendOne(i); err != nil && p.probes[i].From == nil {
			outside = err
		}
		if i%probeWave == probeWave-1 {
			start := time.Now()
			if err := p.await(ctx, i+1-probeWave, i, min(left, wavesTime/5)); err != nil {
				return nil, err
			}
			left -= min(left, time.Since(start))
		}
	}
	return outside, p.await(ctx, 0, len(p.probes)-1, probeTime)
}

func (p *prober) sendOne(i int) (err error) {
	defer func() { p.done[i] = err != nil }()
	probe, number := &p.probes[i], uint16(i+1)
	if probe.From != nil {
		return probe.send(&p.tag, number)
	}
	tun, err := p.tun(probe.In)
	if err == nil {
		_, err = tun.Write(probe.packet(&p.tag, number))
	}
	return err
}

// tun returns a tun device whose packets come in by a link, as if they came from outside.
func (p *prober) tun(in *rtnl.Link) (*os.File, error) {
	if tun := p.tuns[in.Index]; tun != nil {
		return tun, nil
	}
	tun, name, err := rtnl.OpenTun("cniboxprobe%d")
	if err != nil {
		return nil, err
	}
	l, err := p.host.conn.Link(name)
	if err == nil {
		err = p.host.conn.Do(rtnl.NewIngress(l.Index), rtnl.NewInjection(l.Index, in.Index), rtnl.ChangeLink(l.Index, rtnl.LinkChange{Up: new(true)}))
	}
	if err != nil {
		tun.Close()
		return nil, err
	}
	p.tuns[in.Index] = tun
	return tun, nil
}

// errOtherSource means that the route of a probe chooses another address than its Src.
var errOtherSource = errors.New("another source address")

// send sends the probe from its namespace.
func (p *Probe) send(tag *foreign.Tag, number uint16) error {
	dst := p.Dst.Addr()
	family, to := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Addr: as4(dst)})
	level, hops := unix.IPPROTO_IP, unix.IP_TTL
	if dst.Is6() {
		family, to = unix.AF_INET6, &unix.SockaddrInet6{Addr: dst.As16()}
		level, hops = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS
	}
	fd := -1
	err := p.From.Do(func() (err error) {
		fd, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(p.Proto))
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, level, hops, probeTTL); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Connect(fd, to); err != nil {
		return os.NewSyscallError("connect", err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	src := netip.Addr{}
	switch name := name.(type) {
	case *unix.SockaddrInet4:
		src = netip.AddrFrom4(name.Addr)
	case *unix.SockaddrInet6:
		src = netip.AddrFrom16(name.Addr)
	}
	if p.Src.IsValid() && src != p.Src {
		return errOtherSource
	}
	_, err = unix.Write(fd, p.segment(tag, number, src))
	if errors.Is(err, unix.EPERM) { // dropped in output
		err = nil
	}
	return os.NewSyscallError("write", err)
}

// segment returns the transport header and the data, with the checksum.
func (p *Probe) segment(tag *foreign.Tag, number uint16, src netip.Addr) []byte {
	b, at := tag.Header(p.Proto, number, probePort, p.Dst.Port())
	sum := uint32(0)
	if p.Proto != unix.IPPROTO_ICMP { // the pseudo-header: RFC 9293, 3.1, and RFC 8200, 8.1
		sum = sumOf(sumOf(uint32(p.Proto)+uint32(len(b)), src.AsSlice()), p.Dst.Addr().AsSlice())
	}
	binary.BigEndian.PutUint16(b[at:], folded(sumOf(sum, b)))
	return b
}

// packet returns the probe with its IP header: RFC 791 or RFC 8200.
func (p *Probe) packet(tag *foreign.Tag, number uint16) []byte {
	be, segment := binary.BigEndian, p.segment(tag, number, p.Src)
	if p.Dst.Addr().Is6() {
		b := append([]byte{6 << 4, 0, 0, 0, 0, 0, p.Proto, probeTTL}, p.Src.AsSlice()...)
		be.PutUint16(b[4:], uint16(len(segment)))
		return append(append(b, p.Dst.Addr().AsSlice()...), segment...)
	}
	b := append([]byte{4<<4 | 5, 0, 0, 0, 0, 0, 0, 0, probeTTL, p.Proto, 0, 0}, p.Src.AsSlice()...)
	b = append(b, p.Dst.Addr().AsSlice()...)
	be.PutUint16(b[2:], uint16(len(b)+len(segment)))
	be.PutUint16(b[4:], number)
	be.PutUint16(b[10:], folded(sumOf(0, b)))
	return append(b, segment...)
}

// sumOf adds 16-bit numbers: RFC 1071.
func sumOf(sum uint32, b []byte) uint32 {
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	return sum
}

// folded returns the checksum.
func folded(sum uint32) uint16 {
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// await returns when probes have ended, or the time for that is over.
func (p *prober) await(ctx context.Context, first, last int, within time.Duration) error {
	tick := time.NewTicker(probeStep)
	defer tick.Stop()
	for end := time.Now().Add(within); ; {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		if err := p.failed(); err != nil {
			return err
		}
		p.sort()
		if !slices.Contains(p.done[first:last+1], false) || time.Now().After(end) {
			return nil
		}
	}
}

// sort sorts new messages by probe.
func (p *prober) sort() {
	p.mu.Lock()
	events := p.events[0][p.read:]
	p.read = len(p.events[0])
	p.mu.Unlock()
	fresh := map[int]bool{}
	for _, e := range events {
		if e.Packet != nil {
			p.of[e.ID] = e.Packet.Probe
		}
		if n := int(p.of[e.ID]) - 1; n >= 0 && n < len(p.heard) {
			p.heard[n] = append(p.heard[n], e)
			fresh[n] = true
		}
	}
	for n := range fresh {
		p.ways[n] = walk(p.heard[n], nil)
	}
	for i := range p.done {
		if h := p.ways[i].last(); !p.done[i] && h != nil && (fresh[i] || delivers(h)) {
			p.done[i] = p.ended(&p.ways[i])
		}
	}
}

// ended reports whether a probe has ended.
func (p *prober) ended(w *way) bool {
	h := w.last()
	switch {
	case w.dropped != nil:
		return true
	case h == nil || !h.passed:
		return false
	case delivers(h):
		n, needed, err := p.host.neighbour(h)
		return err == nil && (!needed || n.Usable() || n.State&unix.NUD_FAILED != 0)
	}
	return h.name == "input" || h.name == "postrouting" || h.name == "bridge postrouting"
}

// delivers reports whether a probe leaves the host at a hook, for a container.
func delivers(h *hook) bool {
	return h.name == "postrouting" && (h.after.Proto == unix.IPPROTO_ICMP || h.after.Proto == unix.IPPROTO_ICMPV6)
}

// ending returns where a probe has ended; nowhere if messages were missed that would say so.
func (p *prober) ending(i int, missed bool) (e Ending, err error) {
	w := p.ways[i]
	h := w.last()
	if h == nil {
		return e, nil
	}
	e.Hook = h.name
	for _, h := range w.hooks {
		e.Rules = append(e.Rules, h.rules...)
	}
	here := *p.host
	here.way = w
	if w.dropped != nil {
		r := e.Rules[len(e.Rules)-1]
		here.rejected(&r)
		e.Drop = &r
		return e, nil
	}
	if p.done[i] && !delivers(h) || missed {
		return e, nil
	}
	t := &Trace{}
	if t.Steps, err = here.steps(); err != nil {
		return e, err
	}
	p.conclude(t, &here)
	if !t.Reached && (!t.unreported || !h.passed) {
		e.Lost = t
	}
	return e, nil
}

// Base returns the base chain in which the rule that comes last is evaluated, as "table ip nat, chain pre (-100)".
func Base(rules []Rule) string {
	text := ""
	for _, r := range rules {
		if r.Priority != nil {
			text = fmt.Sprintf("table %s %s, chain %s (%d)", r.Family, r.Table, r.Chain, *r.Priority)
		}
	}
	return text
}

// Redirected returns the rules up to the one that has sent the packet to another address than that of to; nil: none has.
func Redirected(rules []Rule, to netip.AddrPort) []Rule {
	for i, r := range rules {
		if addr, dnat := strings.CutPrefix(r.NAT, "dnat to "); dnat && r.Handle != 0 && addr != to.String() {
			return rules[:i+1]
		}
	}
	return nil
}
