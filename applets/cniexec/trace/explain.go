package trace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/nft/foreign"
	"github.com/cnibox/cnibox/rtnl"
)

// A site is a place with its part of the path, and with facts that are not in the messages.
type site struct {
	Place
	way
	tracer *foreign.Tracer
	conn   *rtnl.Conn
	links  map[uint32]rtnl.Link
	routed bool         // the route has been read
	routes []rtnl.Route // to the destination of the packet
	noWay  error        // why there is no route
}

// openSite connects to the place, and reads its links.
func openSite(p Place, w way, t *foreign.Tracer) (*site, error) {
	conn, err := rtnl.Dial(p.NS)
	if err != nil {
		return nil, err
	}
	all, err := conn.Links()
	if err != nil {
		conn.Close()
		return nil, err
	}
	s := &site{Place: p, way: w, tracer: t, conn: conn, links: map[uint32]rtnl.Link{}}
	for _, l := range all {
		s.links[l.Index] = l
	}
	return s, nil
}

// link returns the name of a link; empty: none.
func (s *site) link(index uint32) string {
	l, ok := s.links[index]
	if !ok && index != 0 {
		return fmt.Sprint("#", index)
	}
	return l.Name
}

// route reads the route of the packet at a hook.
func (s *site) route(h *hook) {
	p := h.after
	s.routed = true
	l := rtnl.Lookup{Src: p.Src, Dst: p.Dst, Proto: p.Proto, In: p.In, Mark: p.Mark}
	if p.Proto == unix.IPPROTO_SCTP { // the kernel refuses its ports: rtm_getroute_parse_ip_proto, net/ipv4/fib_semantics.c
		l.Src, l.Dst = netip.AddrPortFrom(p.Src.Addr(), 0), netip.AddrPortFrom(p.Dst.Addr(), 0)
	}
	s.routes, s.noWay = s.conn.LookupRoute(l)
}

// routeText formats the route as ip(8) does, with the links by which the packet has left, if it
// has.
func (s *site) routeText() string {
	if s.noWay != nil {
		return strings.TrimPrefix(s.noWay.Error(), "route ")
	}
	var hops []string
	for _, r := range s.routes {
		text := r.Dst.String()
		if r.Dst.Bits() == 0 {
			text = "default"
		}
		if r.Type == unix.RTN_LOCAL {
			text = "local " + text
		}
		if r.GW.IsValid() {
			text += " via " + r.GW.String()
		}
		if r.Link != 0 {
			text += " dev " + s.link(r.Link)
		}
		if r.Table != unix.RT_TABLE_MAIN && r.Type != unix.RTN_LOCAL {
			text += fmt.Sprint(" table ", r.Table)
		}
		hops = append(hops, text)
	}
	return strings.Join(hops, ", ")
}

// nextHop returns the address to which a packet is sent on a link.
func (s *site) nextHop(h *hook) netip.Addr {
	for _, r := range s.routes {
		if r.Link == h.after.Out && r.GW.IsValid() {
			return r.GW
		}
	}
	return h.after.Dst.Addr()
}

// neighbour reads the entry of the next hop; ok: the link needs one.
func (s *site) neighbour(h *hook) (n rtnl.Neighbour, ok bool, err error) {
	l := s.links[h.after.Out]
	hop := s.nextHop(h)
	if l.Flags&(unix.IFF_NOARP|unix.IFF_LOOPBACK) != 0 || len(l.MAC) != 6 || hop.IsMulticast() || hop == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return n, false, nil
	}
	n, err = s.conn.Neighbour(hop, l.Index)
	n.Addr = hop
	return n, true, err
}

// steps returns the steps of the place: hooks, each followed by the route if it is chosen there,
// and by the neighbour if it is needed there.
func (s *site) steps() (steps []Step, err error) {
	step := func(kind, text string) Step { return Step{Place: s.Name, Kind: kind, Text: text, Rules: []Rule{}} }
	for i, h := range s.hooks {
		hs := step(h.name, "")
		hs.In, hs.Out = s.link(h.before.In), s.link(h.before.Out)
		hs.Source, hs.Destination = addrText(h.before.Src), addrText(h.before.Dst)
		hs.Rules = append(hs.Rules, h.rules...)
		if i == 0 {
			hs.Text = nft.ProtoName(h.before.Proto) + " " + hs.Source + " to " + hs.Destination
		}
		if s.dropped != nil && h == s.last() {
			s.rejected(&hs.Rules[len(hs.Rules)-1])
		}
		steps = append(steps, hs)
		next := ""
		if i+1 < len(s.hooks) {
			next = s.hooks[i+1].name
		}
		pre := s.at("prerouting")
		switch {
		case !h.passed || s.links[h.after.In].Flags&unix.IFF_LOOPBACK != 0:
		case h.name == "prerouting" && !strings.HasPrefix(next, "bridge "), h.name == "output":
			s.route(h)
			steps = append(steps, step("route", s.routeText()))
		case h.name == "bridge input" && next != "prerouting" && pre != nil: // br_netfilter has called it before
			s.route(pre)
			steps = append(steps, step("route", s.routeText()))
		case h.name == "postrouting" && s.routed:
			n, ok, err := s.neighbour(h)
			if err != nil {
				return nil, err
			}
			if ok {
				steps = append(steps, step("neighbour", neighbourText(n)))
			}
		}
	}
	return steps, nil
}

// rejected corrects the verdict of a rule that rejects packets, and adds its comment.
func (s *site) rejected(r *Rule) {
	if r.Handle == 0 {
		return
	}
	rejects, comment := s.tracer.Rejects(*s.dropped)
	if r.Comment = comment; rejects {
		r.Verdict = "reject"
	}
}

func neighbourText(n rtnl.Neighbour) string {
	text := n.Addr.String()
	if n.MAC != nil {
		text += " " + n.MAC.String()
	}
	return text + " " + n.StateText()
}

// resolves reports whether the kernel is resolving the MAC address of a neighbour.
func (f *follower) resolves() bool {
	for i, w := range f.ways() {
		h := w.at("postrouting")
		if h == nil || !h.passed {
			continue
		}
		s, err := openSite(f.Places[i], w, nil)
		if err != nil {
			return false
		}
		all, err := s.conn.Neighbours()
		s.conn.Close()
		asked := func(n rtnl.Neighbour) bool { return n.Link == h.after.Out && n.State&unix.NUD_INCOMPLETE != 0 }
		if err == nil && slices.ContainsFunc(all, asked) {
			return true
		}
	}
	return false
}

// trace returns the result.
func (f *follower) trace() (*Trace, error) {
	t := &Trace{Steps: []Step{}}
	ways := f.ways()
	if ways[0].last() == nil {
		f.none(t)
		return t, nil
	}
	var last *site
	for i, w := range ways {
		if w.last() == nil {
			continue
		}
		s, err := openSite(f.Places[i], w, f.tracers[i])
		if err != nil {
			return nil, err
		}
		f.sites = append(f.sites, s)
		steps, err := s.steps()
		if err != nil {
			return nil, err
		}
		t.Steps = append(t.Steps, steps...)
		if last = s; w.dropped != nil {
			break
		}
	}
	t.end = last
	f.conclude(t, last)
	f.foreign(t, ways)
	f.unmapped(t, ways, last)
	return t, nil
}

// none reports that no packet has come: it is not sent if the route lookup fails.
func (f *follower) none(t *Trace) {
	first := &f.Places[0]
	if d := dropped(first.NS, netip.Addr{}, first.Flow.Dst, ""); d != nil {
		t.dropsRoute(first, d)
		return
	}
	t.Outcome = fmt.Sprintf("no such packet came to %s within %s", first.Name, f.Wait)
	t.Advice = "packets dropped earlier, by XDP, tc or the network, never reach nf_tables"
	if f.Send == nil {
		t.Advice = "start the client meanwhile, or let --send send one; " + t.Advice
	}
}

// dropped returns the rule or the route by which the kernel drops packets between two addresses; nil: none is known.
func dropped(ns *netns.NS, src, dst netip.Addr, in string) *rtnl.Drop {
	conn, err := rtnl.Dial(ns)
	if err != nil {
		return nil
	}
	defer conn.Close()
	d, err := conn.Dropping(src, dst, in)
	if err != nil {
		return nil
	}
	return d
}

// dropsRoute reports a packet that the route lookup drops.
func (t *Trace) dropsRoute(p *Place, d *rtnl.Drop) {
	t.Outcome = fmt.Sprintf("dropped in %s by the %s", p.Name, d.Text)
	t.Advice = inside(p.Name) + fmt.Sprintf("`%s` deletes it", d.Delete)
}

// inside returns the beginning of an advice about a place.
func inside(place string) string {
	if place == "host" {
		return ""
	}
	return "in " + place + ": "
}

// unclear is the trace of a packet that was not followed to its end.
func (t *Trace) unclear(f foreign.Flow) *Trace {
	last := t.Steps[len(t.Steps)-1]
	out := &Trace{Steps: t.Steps}
	out.Outcome = fmt.Sprintf("not followed behind %s %s: more packets match than can be traced, and what came of this one is not known", last.Place, last.Kind)
	if out.Advice = "try again while fewer come"; f.Port == 0 {
		out.Advice = "name a port"
	}
	return out
}

// conclude adds the outcome at the last place that the packet has reached.
func (f *follower) conclude(t *Trace, s *site) {
	h := s.last()
	switch {
	case s.dropped != nil:
		t.dropped(s, h)
	case !h.passed && len(h.rules) > 0 && strings.HasPrefix(h.rules[len(h.rules)-1].Verdict, "queue"):
		t.Outcome = fmt.Sprintf("queued in %s by %s to a process, which has not accepted it", s.Name, h.rules[len(h.rules)-1].chain())
		t.Advice = "look at that process, or delete the rule"
	case !h.passed:
		t.lost(s, "in "+h.name, "rules of iptables-legacy (`iptables-legacy-save`), IPVS or eBPF do not report what they drop")
		f.translatedIn(t, s, h)
	case h.name == "input":
		t.delivered(s, h)
	case h.name == "postrouting", h.name == "bridge postrouting", h.name == "egress":
		f.left(t, s, h)
	case s.noWay != nil:
		t.unroutable(s, h)
	case h.name == "prerouting", h.name == "bridge input" && s.routed:
		t.lost(s, "behind "+h.name, "`nstat -az` counts why")
		if h.name != "prerouting" || s.at("bridge prerouting") == nil || s.at("bridge input") != nil { // else the bridge has called it
			s.notForwarding(t, h)
		}
	case h.name == "bridge prerouting", h.name == "bridge forward", h.name == "bridge output":
		t.lost(s, "behind "+h.name, "`bridge link` shows whether the ports forward, `bridge fdb get MAC br BRIDGE` where it goes")
	default:
		t.lost(s, "behind "+h.name, "`nstat -az` counts why; a packet larger than the MTU of the next link is one reason")
	}
}

// translatedIn looks for what drops the packet at the route lookup after its translation in output. That is no more
// reported, so the destination is one of those to which the port is published.
func (f *follower) translatedIn(t *Trace, s *site, h *hook) {
	for _, to := range f.Published {
		if h.name != "output" || to.Addr().Is4() != h.after.Dst.Addr().Is4() {
			continue
		}
		if d := dropped(s.NS, netip.Addr{}, to.Addr(), ""); d != nil {
			t.dropsRoute(&s.Place, d)
			return
		}
	}
}

// lost reports a packet that was dropped without a message.
func (t *Trace) lost(s *site, where, advice string) {
	t.Outcome, t.Advice = fmt.Sprintf("lost in %s %s; no rule of nf_tables has dropped it", s.Name, where), advice
	t.unreported = true
	in := s.at("bridge prerouting")
	if in == nil || !s.links[in.before.In].Isolated || s.at("forward") != nil || s.at("input") != nil {
		return
	}
	port := s.link(in.before.In)
	t.Outcome = fmt.Sprintf("lost in %s: the port %s is isolated, so that it reaches no other isolated port of its bridge", s.Name, port)
	t.Advice = fmt.Sprintf("`ip link set %s type bridge_slave isolated off`", port)
}

// ownDrop explains the chains of cnibox that drop packets; empty: another chain.
func ownDrop(chain string) string {
	switch chain {
	case "policies":
		return "the networks are kept apart: \"ingressPolicy\", and isolated bridges"
	case "macs":
		return "a bridge port sends from another MAC address (\"macspoofchk\") or router advertisements"
	case "guard":
		return "packets from other hosts for 127.0.0.0/8 are dropped"
	}
	return ""
}

// dropped reports what has dropped the packet.
func (t *Trace) dropped(s *site, h *hook) {
	r := t.Steps[len(t.Steps)-1].Rules[len(h.rules)-1]
	chain := r.chain()
	if r.Handle == 0 {
		t.Outcome = fmt.Sprintf("dropped in %s by the policy of %s", s.Name, chain)
	} else {
		t.Outcome = fmt.Sprintf("dropped in %s by %s handle %d", s.Name, chain, r.Handle)
	}
	enter := inside(s.Name)
	switch own := ownDrop(r.Chain); {
	case r.Table == nft.TableName && own != "":
		t.Advice = own
	case r.Handle != 0:
		t.Advice = enter + fmt.Sprintf("`nft delete rule %s handle %d` deletes the rule, `nft -a list chain %s` shows it", chain, r.Handle, chain)
	default:
		t.Advice = enter + fmt.Sprintf("accept it there: `nft add rule %s %s accept`", chain, matchOf(&h.after))
	}
}

// matchOf returns a match for the packet, in the syntax of nft.
func matchOf(p *foreign.Packet) string {
	family := "ip"
	if p.Dst.Addr().Is6() {
		family = "ip6"
	}
	text := family + " daddr " + p.Dst.Addr().String()
	if p.Dst.Port() != 0 {
		text += fmt.Sprintf(" %s dport %d", nft.ProtoName(p.Proto), p.Dst.Port())
	}
	return text
}

// unroutable explains why there is no route, by the kernel's errno.
func (t *Trace) unroutable(s *site, h *hook) {
	if pre := s.at("prerouting"); pre != nil {
		h = pre
	}
	dst, in := h.after.Dst.Addr(), s.link(h.after.In)
	t.Outcome = fmt.Sprintf("%s has no %v", s.Name, s.noWay)
	if d := dropped(s.NS, h.after.Src.Addr(), dst, in); d != nil {
		t.dropsRoute(&s.Place, d)
		return
	}
	switch {
	case errors.Is(s.noWay, unix.EXDEV), errors.Is(s.noWay, unix.EINVAL) && s.filtersReverse(&h.after):
		t.Outcome = fmt.Sprintf("dropped in %s by rp_filter: the route back to %s does not lead out of %s", s.Name, h.after.Src.Addr(), in)
		t.Advice = fmt.Sprintf("a route back: `ip route add %s dev %s`, or `sysctl -w net.ipv4.conf.%s.rp_filter=2`", h.after.Src.Addr(), in, in)
	case errors.Is(s.noWay, unix.EACCES):
		t.Advice = "`ip rule` and `ip route show table all type prohibit` show what prohibits it"
	case errors.Is(s.noWay, unix.EINVAL):
		t.Advice = fmt.Sprintf("%s must not come in by %s, as an address of the host itself, or the route is a blackhole: `ip route show table all`", h.after.Src.Addr(), in)
	default:
		t.Advice = fmt.Sprintf("`ip route add %s via ROUTER` makes one", netip.PrefixFrom(dst, dst.BitLen()))
		s.notForwarding(t, h)
	}
}

// filtersReverse reports whether the reverse path filter (rp_filter) drops a packet. Since Linux
// 6.13 the errno does not show it.
func (s *site) filtersReverse(p *foreign.Packet) bool {
	all, err := s.NS.Sysctl("net/ipv4/conf/all/rp_filter")
	own, oerr := s.NS.Sysctl("net/ipv4/conf/" + s.link(p.In) + "/rp_filter")
	if err != nil || oerr != nil || !p.Src.Addr().Is4() || max(all, own) == "0" {
		return false
	}
	back, err := s.conn.RouteTo(p.Src.Addr())
	return err != nil || back.Link != p.In
}

// notForwarding reports whether the packet was not forwarded because forwarding is off.
func (s *site) notForwarding(t *Trace, h *hook) {
	if pre := s.at("prerouting"); pre != nil {
		h = pre
	}
	in := s.link(h.after.In)
	if in == "" || len(s.routes) > 0 && s.routes[0].Type == unix.RTN_LOCAL {
		return
	}
	keys := []string{"net/ipv4/ip_forward", "net/ipv4/conf/" + in + "/forwarding"}
	if h.after.Dst.Addr().Is6() {
		keys = []string{"net/ipv6/conf/all/forwarding"} // ip6_forward, net/ipv6/ip6_output.c, looks at no link
	}
	for _, key := range keys {
		if value, err := s.NS.Sysctl(key); err != nil || value != "0" {
			continue
		}
		name := key // a link's name may have dots, and slashes are as good for sysctl
		if !strings.Contains(in, ".") {
			name = strings.ReplaceAll(key, "/", ".")
		}
		t.Outcome = fmt.Sprintf("%s does not forward (%s is 0)", s.Name, name)
		t.Advice = inside(s.Name) + fmt.Sprintf("`sysctl -w %s=1`", name)
		t.unreported = false
		return
	}
}

// delivered looks for a socket of the place that receives the packet.
func (t *Trace) delivered(s *site, h *hook) {
	p := h.after
	t.Reached, t.Outcome = true, "delivered to "+s.Name
	if p.Dst.Port() == 0 { // a protocol without ports
		return
	}
	t.socket(s, p.Proto, p.Dst)
}

// socket looks for the socket that receives a packet.
func (t *Trace) socket(s *site, proto uint8, dst netip.AddrPort) {
	all, err := rtnl.Listeners(s.NS, proto)
	if err != nil {
		return // the kernel does not support this
	}
	var others []string
	for _, l := range all {
		switch {
		case l.Addr.Port() != dst.Port():
		case receives(l, dst.Addr()):
			text := fmt.Sprintf("%s %s listens", nft.ProtoName(proto), l.Addr)
			t.Steps = append(t.Steps, Step{Place: s.Name, Kind: "port", Text: text, Rules: []Rule{}})
			t.Outcome += ", where " + text
			return
		default:
			others = append(others, l.Addr.String())
		}
	}
	text := fmt.Sprintf("%s %s: nothing listens", nft.ProtoName(proto), dst)
	t.Steps = append(t.Steps, Step{Place: s.Name, Kind: "port", Text: text, Rules: []Rule{}})
	t.Reached = false
	t.Outcome += fmt.Sprintf(", where nothing listens on %s %s", nft.ProtoName(proto), dst)
	t.Advice = "start the program, or see with `ss -lnp` on which address and port it listens"
	if len(others) > 0 {
		t.Advice = fmt.Sprintf("the program listens on %s: let it listen on any address", strings.Join(others, ", "))
	}
}

// receives reports whether a socket receives packets for an address.
func receives(l rtnl.Listener, dst netip.Addr) bool {
	at := l.Addr.Addr()
	return at == dst || at.IsUnspecified() && (at.Is4() == dst.Is4() || at.Is6() && !l.V6Only)
}

// left reports a packet that has left its last place by a link.
func (f *follower) left(t *Trace, s *site, h *hook) {
	out := s.link(h.after.Out)
	t.Reached, t.Outcome = true, fmt.Sprintf("left %s by %s for %s", s.Name, out, addrText(h.after.Dst))
	if routed := s.at("postrouting"); routed != nil && s.routed {
		n, ok, err := s.neighbour(routed)
		if err == nil && ok && !n.Usable() {
			t.Reached = false
			t.Outcome = fmt.Sprintf("lost in %s: no answer from %s on %s, whose MAC address is needed", s.Name, n.Addr, s.link(routed.after.Out))
			t.Advice = fmt.Sprintf("is there a host with that address? `ip neigh show dev %s`", s.link(routed.after.Out))
			if p := f.having(s, n.Addr); p != nil {
				t.Outcome = fmt.Sprintf("lost between %s and %s, which has %s: its MAC address is needed, and no answer comes on %s", s.Name, p.Name, n.Addr, s.link(routed.after.Out))
				t.Advice = f.frames()
			}
			s.portState(t)
			return
		}
	}
	next := f.next(s, h.after.Dst.Addr())
	if next == nil {
		return
	}
	t.Reached = false
	t.Outcome = fmt.Sprintf("left %s by %s, and did not come to %s, which has %s", s.Name, out, next.Name, h.after.Dst.Addr())
	t.Advice = f.frames()
	t.unreported = true
	s.portState(t)
}

// frames returns an advice about frames that are lost between two places.
func (f *follower) frames() string {
	advice := "`ip -s link` counts what is dropped at both ends"
	var chains []string
	for _, t := range f.tracers {
		chains = append(chains, t.LinkLayerChains()...)
	}
	if slices.Sort(chains); len(chains) > 0 {
		advice += "; ARP and frames also pass " + strings.Join(slices.Compact(chains), ", ") + ": `nft list ruleset`"
	}
	return advice
}

// next returns the next place, which has the address; nil: none that is traced.
func (f *follower) next(s *site, addr netip.Addr) *Place {
	i := slices.IndexFunc(f.Places, func(p Place) bool { return p.NS == s.NS })
	for _, p := range f.Places[i+1:] {
		if hasAddr(p.NS, addr) {
			return &p
		}
	}
	return nil
}

// having returns another place that has an address; nil: none that is traced.
func (f *follower) having(s *site, addr netip.Addr) *Place {
	for _, p := range f.Places {
		if p.NS != s.NS && hasAddr(p.NS, addr) {
			return &p
		}
	}
	return nil
}

// hasAddr reports whether a namespace has an address.
func hasAddr(ns *netns.NS, addr netip.Addr) bool {
	list, err := Addresses(ns)
	return err == nil && slices.Contains(list, addr)
}

// Addresses returns the addresses of a namespace to which others can send, by link.
func Addresses(ns *netns.NS) (list []netip.Addr, err error) {
	conn, err := rtnl.Dial(ns)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	of, err := conn.AllAddrs()
	if err != nil {
		return nil, err
	}
	indexes := make([]uint32, 0, len(of))
	for index := range of {
		indexes = append(indexes, index)
	}
	slices.Sort(indexes)
	for _, index := range indexes {
		for _, a := range of[index] {
			if addr := a.Prefix.Addr(); !addr.IsLoopback() && !addr.IsLinkLocalUnicast() {
				list = append(list, addr)
			}
		}
	}
	return list, nil
}

// portState reports a port of the bridge that the packet has left by and that does not forward.
func (s *site) portState(t *Trace) {
	routed := s.at("postrouting")
	if routed == nil {
		return
	}
	var closed []string
	for _, l := range s.links {
		if l.Master == routed.after.Out && l.PortState != rtnl.PortForwarding {
			closed = append(closed, l.Name)
		}
	}
	if slices.Sort(closed); len(closed) > 0 {
		t.Advice = fmt.Sprintf("%s does not forward: `ip link set %s up`, there and at its peer", strings.Join(closed, ", "), closed[0])
	}
}

// foreign reports a published port that leads to another address than that of its plugin.
func (f *follower) foreign(t *Trace, ways []way) {
	for _, w := range ways {
		for _, h := range w.hooks {
			for _, r := range h.rules {
				to, dnat := strings.CutPrefix(r.NAT, "dnat to ")
				if !dnat || len(f.Published) == 0 || slices.ContainsFunc(f.Published, func(p netip.AddrPort) bool { return p.String() == to }) {
					continue
				}
				t.Reached = false
				t.Outcome = fmt.Sprintf("%s leads to %s, and the port is published to %s", strings.TrimSuffix(r.String(), ": "+r.NAT), to, listed(f.Published)) + "; " + t.Outcome
				if r.Handle != 0 {
					t.Advice = strings.Trim(fmt.Sprintf("`nft delete rule %s handle %d` deletes that rule; %s", r.chain(), r.Handle, t.Advice), "; ")
				}
				return
			}
		}
	}
}

// unmapped reports a packet to a published port that no rule has led anywhere. Connection tracking
// asks the rules of dnat for the first packet of a flow only.
func (f *follower) unmapped(t *Trace, ways []way, s *site) {
	h := s.last()
	if len(f.Published) == 0 || h.name != "input" || slices.Contains(f.Published, h.after.Dst) {
		return
	}
	for _, w := range ways {
		for _, h := range w.hooks {
			if slices.ContainsFunc(h.rules, func(r Rule) bool { return strings.HasPrefix(r.NAT, "dnat to ") }) {
				return
			}
		}
	}
	t.Reached = false
	t.Outcome += "; the port is published to " + listed(f.Published) + ", and no rule has led the packet there: the rule is missing, or younger than the flow"
	t.Advice = "`cni-exec reload` writes missing rules, and ends UDP flows that are older than theirs"
}

func listed(list []netip.AddrPort) string {
	var texts []string
	for _, a := range list {
		texts = append(texts, a.String())
	}
	return strings.Join(texts, ", ")
}

// unsent reports a packet that the kernel refuses to send.
func (f *follower) unsent(err error) (*Trace, error) {
	first := &f.Places[0]
	t := &Trace{Steps: []Step{}, Outcome: fmt.Sprintf("%s sends nothing: %v", first.Name, err)}
	if d := dropped(first.NS, netip.Addr{}, first.Flow.Dst, ""); d != nil {
		t.dropsRoute(first, d)
	} else if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
		t.Advice = "it has no route: `ip route` there, and \"routes\" of the network's configuration"
	} else if errors.Is(err, unix.EPROTONOSUPPORT) {
		t.Advice = "this kernel lacks SCTP: `modprobe sctp`, or start the client meanwhile, without --send"
	}
	return t, nil
}

// answerTime is how long an answer is waited for: longer than the second after which TCP sends the first packet again.
const answerTime = 2 * time.Second

// answer waits for the answer to the packet, if it was sent and has reached its end.
func (f *follower) answer(ctx context.Context, t *Trace, socket *Socket) error {
	if socket == nil || !t.Reached {
		return nil
	}
	err := socket.Answer(ctx, min(answerTime, f.Wait))
	var errno unix.Errno
	switch {
	case err == nil:
		t.Outcome += "; an answer came"
	case errors.Is(err, os.ErrDeadlineExceeded) && socket.proto == unix.IPPROTO_UDP:
		t.Outcome += fmt.Sprintf("; no answer came within %s, which not every program gives", answerTime)
	case errors.Is(err, os.ErrDeadlineExceeded):
		t.Reached = false
		t.Outcome += fmt.Sprintf("; no answer came within %s", answerTime)
		t.Advice = f.wayBack(t.end)
	case errors.As(err, &errno):
		t.Reached = false
		t.Outcome += "; the answer: " + errno.Error()
		t.Advice = "nothing listens there, or a firewall rejects it"
	default:
		return err
	}
	return nil
}

// wayBack returns an advice about an answer that has not come, by what the last place has of the way of it.
func (f *follower) wayBack(s *site) string {
	p := s.last().after
	if s.last().name != "input" {
		return fmt.Sprintf("%s does not answer, or the answer is lost outside of what is traced here", p.Dst.Addr())
	}
	route, err := s.conn.RouteTo(p.Src.Addr())
	if err != nil {
		return fmt.Sprintf("%sno way back: %v", inside(s.Name), err)
	}
	hop := route.GW
	if !hop.IsValid() {
		hop = p.Src.Addr()
	}
	link := s.link(route.Link)
	n, err := s.conn.Neighbour(hop, route.Link)
	if err != nil || n.MAC == nil {
		return fmt.Sprintf("the answer is lost: its way from %s begins at %s by %s, whose MAC address %[1]s does not know", s.Name, hop, link)
	}
	for _, other := range f.Places {
		if mac := macOf(other.NS, hop); other.NS != s.NS && mac != "" && mac != n.MAC.String() {
			return fmt.Sprintf("%s sends the answer to %s %s (%s), and the address is that of %s, which has %s: %s`ip neigh del %s dev %s`",
				s.Name, hop, n.MAC, n.StateText(), other.Name, mac, inside(s.Name), hop, link)
		}
	}
	return fmt.Sprintf("the answer is lost: its way from %s begins at %s %s by %s; the program may not accept connections, or a rule drops them", s.Name, hop, n.MAC, link)
}

// macOf returns the MAC address of the link of a namespace that has an address; empty: none.
func macOf(ns *netns.NS, addr netip.Addr) string {
	conn, err := rtnl.Dial(ns)
	if err != nil {
		return ""
	}
	defer conn.Close()
	of, err := conn.AllAddrs()
	if err != nil {
		return ""
	}
	for index, list := range of {
		if slices.ContainsFunc(list, func(a rtnl.Addr) bool { return a.Prefix.Addr() == addr }) {
			if l, err := conn.LinkAt(index); err == nil {
				return l.MAC.String()
			}
		}
	}
	return ""
}
