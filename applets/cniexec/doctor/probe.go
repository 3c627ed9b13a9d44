package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/applets/cniexec/inventory"
	"github.com/cnibox/cnibox/applets/cniexec/sandbox"
	"github.com/cnibox/cnibox/applets/cniexec/trace"
	"github.com/cnibox/cnibox/applets/hostport"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/nft"
	"github.com/cnibox/cnibox/nft/foreign"
	"github.com/cnibox/cnibox/rtnl"
	"github.com/cnibox/cnibox/spec"
)

// mostPorts is the largest number of published ports of an attachment that are probed.
const mostPorts = 8

// A probe is a packet to or from an attachment.
type probe struct {
	trace.Probe
	of   *inventory.Entry
	what string         // "what it sends to other hosts"
	port string         // to a published port: "tcp/8080 to 10.1.0.2"; else empty
	to   netip.AddrPort // to which the port is published

	within bool // between two ports of a bridge
	before bool // only a rule that comes before those of the port counts
}

// A prober makes the probes of a doctor.
type prober struct {
	*Doctor
	c      *rtnl.Conn
	own    map[netip.Addr]*rtnl.Link // addresses of this host
	spaces map[string]*netns.NS      // of containers, by path
	list   []probe
}

// checkPackets asks the kernel what it does with packets of each attachment: from the host and from outside to its published
// ports, from the host to it, and from it to its gateway and to other hosts. No packet leaves the host.
func (d *Doctor) checkPackets(ctx context.Context) {
	if d.NoProbe || d.inv.Links == nil || len(d.live()) == 0 {
		return
	}
	p := &prober{Doctor: d, own: map[netip.Addr]*rtnl.Link{}, spaces: map[string]*netns.NS{}}
	defer func() {
		for _, ns := range p.spaces {
			ns.Close()
		}
	}()
	_, err := inventory.AskHost(func(c *rtnl.Conn) (struct{}, error) {
		p.c = c
		return struct{}{}, p.plan()
	})
	var probes []trace.Probe
	for _, one := range p.list {
		probes = append(probes, one.Probe)
	}
	var endings []trace.Ending
	if err == nil && len(probes) > 0 {
		var outside error
		if endings, outside, err = trace.Send(ctx, probes); outside != nil {
			d.skipFor("some packets", outside)
		}
	}
	if err != nil {
		d.skipFor("packets", err)
		return
	}
	p.judge(endings)
}

// skipFor is skip, but for what this kernel cannot do at all.
func (d *Doctor) skipFor(check string, err error) {
	undone := d.Undone
	d.skip(check, err)
	if spec.AsError(err).Code == spec.CodeHost || errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.EOPNOTSUPP) {
		d.Undone = undone
	}
}

// plan makes the list of probes.
func (p *prober) plan() error {
	of, err := p.addrs()
	if err != nil {
		return err
	}
	for i := range p.inv.Links.All {
		l := &p.inv.Links.All[i]
		for _, a := range of[l.Index] {
			p.own[a.Prefix.Addr()] = l
		}
	}
	uplinks := map[bool]*rtnl.Link{true: p.uplink(foreign.Outside(true)), false: p.uplink(foreign.Outside(false))} // of IPv4 and IPv6
	live := p.live()
	for i, a := range live {
		link := p.inv.Link(a)
		if link == nil || link.Kind != "veth" {
			continue
		}
		for _, ip := range a.Parsed.Addresses(a.IfName, nil) {
			addr := ip.Address.Addr()
			uplink := uplinks[addr.Is4()]
			p.toContainer(a, link, addr)
			p.toGateway(a, addr, ip.Gateway)
			if a.Conf.Routed && uplink != nil {
				p.add(a, probe{what: "what it sends to other hosts", Probe: trace.Probe{Proto: unix.IPPROTO_TCP, Src: addr, Dst: netip.AddrPortFrom(foreign.Outside(addr.Is4()), 443)}})
			}
			p.toPorts(a, addr, uplink, of)
			p.withinBridge(a, link, addr, slices.Concat(live[i+1:], live[:i]))
		}
	}
	return nil
}

// add adds a probe that the container sends.
func (p *prober) add(a *inventory.Entry, one probe) {
	path := a.NetNSPath()
	ns, known := p.spaces[path]
	if !known {
		ns, _ = netns.Open(path)
		if ns != nil {
			p.spaces[path] = ns
		}
	}
	if ns != nil { // else it has just ended
		one.of, one.From = a, ns
		p.list = append(p.list, one)
	}
}

// uplink returns the link by which packets to an address leave the host by its default route; nil: none.
func (p *prober) uplink(addr netip.Addr) *rtnl.Link {
	routes, err := p.c.LookupRoute(rtnl.Lookup{Dst: netip.AddrPortFrom(addr, 0)})
	if err != nil || len(routes) == 0 || routes[0].Dst.Bits() > 0 || routes[0].Type != unix.RTN_UNICAST {
		return nil
	}
	return p.inv.Links.ByIndex[routes[0].Link]
}

// echo returns the protocol of echo requests.
func echo(addr netip.Addr) uint8 {
	if addr.Is4() {
		return unix.IPPROTO_ICMP
	}
	return unix.IPPROTO_ICMPV6
}

// toContainer adds the probe from this host to an address, if its route leads there.
func (p *prober) toContainer(a *inventory.Entry, link *rtnl.Link, addr netip.Addr) {
	to := netip.AddrPortFrom(addr, 0)
	routes, err := p.c.LookupRoute(rtnl.Lookup{Dst: to})
	if err != nil || len(routes) != 1 || routes[0].Type != unix.RTN_UNICAST || routes[0].GW.IsValid() {
		return
	}
	out := p.inv.Links.ByIndex[routes[0].Link]
	if out != nil && (out.Index == link.Index || out.Index == link.Master || out.Name == a.Conf.Link) {
		p.list = append(p.list, probe{of: a, what: "what this host sends to it", Probe: trace.Probe{From: netns.Host(), Proto: echo(addr), Dst: to}})
	}
}

// toGateway adds the probe to the gateway, if that is this host.
func (p *prober) toGateway(a *inventory.Entry, addr, gateway netip.Addr) {
	if gateway.IsValid() && p.own[gateway] != nil {
		p.add(a, probe{what: "what it sends to its gateway " + gateway.String(), Probe: trace.Probe{Proto: echo(addr), Src: addr, Dst: netip.AddrPortFrom(gateway, 0)}})
	}
}

// toPorts adds the probes to published ports.
func (p *prober) toPorts(a *inventory.Entry, addr netip.Addr, uplink *rtnl.Link, of map[uint32][]rtnl.Addr) {
	for _, m := range a.Ports[:min(len(a.Ports), mostPorts)] {
		ip, proto := m.HostIP, hostport.ProtoNumber(m.Protocol)
		if !m.InFamily(addr) || proto == unix.IPPROTO_SCTP {
			continue
		}
		if !ip.IsValid() || ip.IsUnspecified() {
			ip = hostAddr(addr.Is4(), uplink, of)
		}
		if p.own[ip] == nil {
			continue
		}
		name := fmt.Sprintf("%s/%d", m.Protocol, m.HostPort)
		one := probe{of: a, port: name + " to " + addr.String(), to: netip.AddrPortFrom(addr, m.ContainerPort)}
		one.what = "what this host sends to its port " + name
		one.Probe = trace.Probe{From: netns.Host(), Proto: proto, Dst: netip.AddrPortFrom(ip, m.HostPort)}
		p.list = append(p.list, one)
		if uplink == nil && !ip.IsLoopback() { // from outside nothing comes; a container sees the same rules before those of the port
			one.before, one.Src = true, addr
			p.add(a, one)
		} else if uplink != nil && uplink.Flags&unix.IFF_RUNNING != 0 && !ip.IsLoopback() {
			one.what = "what other hosts send to its port " + name
			one.From, one.In, one.Src = nil, uplink, foreign.Outside(addr.Is4())
			p.list = append(p.list, one)
		}
	}
}

// hostAddr returns an address of this host on its uplink, or else on another link; zero: none.
func hostAddr(four bool, uplink *rtnl.Link, of map[uint32][]rtnl.Addr) (found netip.Addr) {
	for index, list := range of {
		for _, a := range list {
			addr := a.Prefix.Addr()
			switch {
			case addr.Is4() != four || addr.IsLoopback() || addr.IsLinkLocalUnicast():
			case uplink != nil && index == uplink.Index:
				return addr
			case !found.IsValid() || addr.Less(found):
				found = addr
			}
		}
	}
	return found
}

// withinBridge adds the probe to another container on the bridge, if its frames pass the chains for packets.
func (p *prober) withinBridge(a *inventory.Entry, link *rtnl.Link, addr netip.Addr, others []*inventory.Entry) {
	if link.Master == 0 || link.Isolated || sandbox.Sysctl(callsTables(addr)) != "1" {
		return
	}
	for _, o := range others {
		l := p.inv.Link(o)
		if l == nil || l.Master != link.Master || l.Isolated || o.NetNSPath() == a.NetNSPath() || o.NetworkName != a.NetworkName {
			continue
		}
		i := slices.IndexFunc(o.Addresses(), func(to netip.Prefix) bool { return to.Addr().Is4() == addr.Is4() })
		if i >= 0 {
			p.add(a, probe{within: true, what: "what it sends within the bridge",
				Probe: trace.Probe{Proto: echo(addr), Src: addr, Dst: netip.AddrPortFrom(o.Addresses()[i].Addr(), 0)}})
			return
		}
	}
}

// callsTables returns the setting with which frames of a family pass the chains for packets.
func callsTables(addr netip.Addr) string {
	if addr.Is4() {
		return "net/bridge/bridge-nf-call-iptables"
	}
	return "net/bridge/bridge-nf-call-ip6tables"
}

// judge adds the findings. One rule that drops packets of many attachments is one finding.
func (p *prober) judge(endings []trace.Ending) {
	type group struct {
		Finding
		of []*inventory.Entry
	}
	groups, order := map[string]*group{}, []*group(nil)
	for i, e := range endings {
		one := &p.list[i]
		f, fault := p.finding(one, &e)
		if !fault {
			continue
		}
		cause := f.Check + f.Where + f.Repair
		if groups[cause] == nil {
			groups[cause] = &group{Finding: f}
			order = append(order, groups[cause])
		}
		if g := groups[cause]; !slices.Contains(g.of, one.of) {
			g.of = append(g.of, one.of)
		}
	}
	for _, g := range order {
		g.Where = cmp.Or(g.Where, p.titles(g.of))
		p.Doctor.add(g.Finding, g.of...)
	}
}

// finding returns what the ending of a probe says, if that is a fault.
func (p *prober) finding(one *probe, e *trace.Ending) (f Finding, fault bool) {
	f.Code = spec.CodeHost
	if rules := trace.Redirected(e.Rules, one.to); one.to.IsValid() && rules != nil && !ours(&rules[len(rules)-1]) {
		r := &rules[len(rules)-1]
		return answersFirst(one, rules, r, r.NAT), true
	}
	switch {
	case e.Drop != nil && (ours(e.Drop) || e.Drop.Policy && (e.Hook == "input" || e.Hook == "output")):
		return f, false // a host that offers and asks little of itself still serves its containers
	case e.Drop != nil && one.port != "" && (e.Hook == "prerouting" || e.Hook == "output") && !e.Drop.Policy:
		return answersFirst(one, e.Rules, e.Drop, e.Drop.Verdict), true
	case one.before:
		return f, false
	case e.Drop != nil:
		return p.dropped(one, e), true
	case e.Lost == nil || len(p.off) > 0 || p.concerns(one.of):
		return f, false
	}
	f.Check, f.Message, f.Repair = "packets", one.what+": "+e.Lost.Outcome, strings.ReplaceAll(e.Lost.Advice, "`", "")
	return f, true
}

// ours reports whether a rule is of cnibox, or of the chains that it shares with the reference.
func ours(r *trace.Rule) bool {
	return r.Table == nft.TableName || r.Table == "filter" && strings.HasPrefix(r.Chain, "CNI-")
}

// answersFirst returns the finding about a rule of another program that decides about a published port.
func answersFirst(one *probe, rules []trace.Rule, r *trace.Rule, text string) Finding {
	return Finding{Check: "port", Where: one.port, Code: spec.CodeBusy, Message: fmt.Sprintf("%s answers first: %s", trace.Base(rules), text), Repair: deletion(r)}
}

// deletion returns the command that deletes a rule.
func deletion(r *trace.Rule) string {
	return fmt.Sprintf("nft delete rule %s %s %s handle %d", r.Family, r.Table, r.Chain, r.Handle)
}

// dropped returns the finding about a rule or policy that drops a probe.
func (p *prober) dropped(one *probe, e *trace.Ending) Finding {
	f := Finding{Check: "packets", Code: spec.CodeHost}
	if e.Hook == "forward" {
		f.Check = "forward policy"
	}
	r, link := e.Drop, cmp.Or(one.of.Conf.Link, one.of.HostLink)
	chain := fmt.Sprintf("chain %s of table %s %s", r.Chain, r.Family, r.Table)
	if r.Handle == 0 {
		f.Message = one.what + " is dropped by the policy of " + chain
		f.Repair = letThrough(r, link)
	} else {
		f.Message = fmt.Sprintf("%s is dropped by a rule of %s, handle %d", one.what, chain, r.Handle)
		f.Repair = deletion(r)
		if r.Comment != "" {
			f.Message += fmt.Sprintf(", comment %q", r.Comment)
		}
	}
	f.Message += ", and no accept of another table overrules that"
	switch {
	case one.within:
		f.Check, f.Repair = "bridge netfilter", setting(callsTables(one.Src), "0")
	case r.Table == "firewalld" && e.Hook == "forward" && one.of.Conf.Link != "":
		f.Check, f.Repair = "firewalld", "firewall-cmd --zone=trusted --add-interface="+one.of.Conf.Link+" --permanent && firewall-cmd --reload"
	}
	return f
}

// letThrough returns the commands that make a chain accept the packets of a link.
func letThrough(r *trace.Rule, link string) string {
	line := fmt.Sprintf("nft insert rule %s %s %s", r.Family, r.Table, r.Chain)
	return fmt.Sprintf("%s iifname %q accept\n%s oifname %q accept", line, link, line, link)
}

// concerns reports whether there is a finding about an attachment.
func (d *Doctor) concerns(a *inventory.Entry) bool {
	return slices.ContainsFunc(d.Found, func(f Finding) bool { return slices.Contains(f.attachments, a) })
}
