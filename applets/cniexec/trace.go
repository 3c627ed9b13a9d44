package cniexec

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cnibox/applets/cniexec/inventory"
	"cnibox/applets/cniexec/sandbox"
	"cnibox/applets/cniexec/trace"
	"cnibox/applets/hostport"
	"cnibox/internal/netns"
	"cnibox/nft/foreign"
	"cnibox/spec"
)

func traceVerb() *verb {
	return &verb{name: "trace", group: "Look", operands: "PROTO/PORT | [ID|NETNS] ADDRESS", summary: "follow a packet, as the kernel reports it", new: func(c *call) action { return &traceCall{call: c} },
		text: `It waits for the first packet of a connection to a port of this host, or to
ADDRESS[:PORT][/PROTO] from a container or by way of this host, and prints the
rules that it meets, its route, neighbour and socket, and what to do if it is
lost. PROTO is tcp, udp or sctp. The exit code is 1 if the packet does not come,
does not get there or, of TCP with --send, gets no answer. Nothing is left,
however it ends.`,
		examples: []example{
			{"cni-exec trace tcp/8080", "from a client to a published port"},
			{"cni-exec trace c1 192.0.2.7:443 --send", "from a container, by a connection of this program"},
		},
	}
}

// A traceCall is one call of trace.
type traceCall struct {
	*call
	wait timeLimit
	send bool
}

func (c *traceCall) flags(f *flagSet) {
	c.wait = timeLimit(10 * time.Second)
	f.Var(&c.wait, "wait", "`TIME` how long to wait for the packet; default 10s")
	f.BoolVar(&c.send, "send", false, "send it, and wait for the answer: from the container, or from this host, which no rule of prerouting and forward sees")
	f.outputs("`json` print JSON")
}

// A traceTarget is the destination of the packet.
type traceTarget struct {
	addr  netip.Addr // zero: to this host
	port  uint16     // 0: any
	proto uint8      // 0: any
}

// do traces a packet.
func (c *traceCall) do(ctx context.Context, operands []string) (int, error) {
	if len(operands) == 0 || len(operands) > 2 {
		return 0, usage("trace: it takes PROTO/PORT, or ADDRESS[:PORT], before which a container may stand")
	}
	to, err := parseTraceTarget(operands[len(operands)-1])
	switch {
	case err != nil:
		return 0, usage("trace: %w", err)
	case len(operands) == 2 && !to.addr.IsValid():
		return 0, usage("trace: %q names no address: from a container it is ADDRESS:PORT", operands[1])
	case c.send && to.port == 0:
		return 0, usage("trace: --send needs a port: %s:PORT", operands[len(operands)-1])
	}
	v, err := c.look()
	if err != nil {
		return 0, err
	}
	v.ReadHolds(ctx, inventory.Publishing(v.Entries))
	r := trace.Request{Wait: time.Duration(c.wait)}
	defer func() {
		for _, p := range r.Places {
			p.NS.Close()
		}
	}()
	from := ""
	if len(operands) == 2 {
		from = operands[0]
	}
	if err := c.places(&r, v, from, to); err != nil {
		return 0, err
	}
	if c.send {
		r.Send = func() (*trace.Socket, error) {
			dst, err := to.dial(r.Places[0].NS, v)
			if err != nil {
				return nil, err
			}
			return trace.Dial(r.Places[0].NS, to.proto, dst)
		}
	}
	t, err := trace.Follow(ctx, r)
	if err != nil {
		return 0, err
	}
	return c.printTrace(t)
}

// places fills in the namespaces on the path: that of the sending container, the host, and those of
// the containers that may receive the packet.
func (c *traceCall) places(r *trace.Request, v *inventory.Inventory, from string, to traceTarget) error {
	flow := foreign.Flow{Proto: to.proto, Dst: to.addr, Port: to.port}
	host := flow
	if from != "" {
		p, err := openPlace(v, from)
		if err != nil {
			return err
		}
		p.Flow = flow
		r.Places = append(r.Places, p)
		addrs, err := trace.Addresses(p.NS)
		if err != nil {
			return err
		}
		host.Src = slices.DeleteFunc(addrs, func(a netip.Addr) bool { return a.Is4() != to.addr.Is4() })
		if len(host.Src) == 0 {
			return spec.Errorf(spec.CodeUnknown, "%s has no address that could send to %s", from, to.addr)
		}
	}
	r.Places = append(r.Places, trace.Place{Name: "host", NS: netns.Host(), Flow: host})
	for _, a := range v.Entries {
		published, gets := to.published(a)
		if from == "" && !to.addr.IsValid() {
			r.Published = append(r.Published, published...)
		}
		if !a.Alive() || !gets && len(published) == 0 {
			continue
		}
		ns, err := netns.Open(a.NetNSPath())
		if err != nil {
			c.warn("not traced: %v", err)
			continue
		}
		known := slices.ContainsFunc(r.Places, func(p trace.Place) bool {
			same, err := p.NS.Same(ns)
			return same && err == nil
		})
		if known {
			ns.Close()
			continue
		}
		r.Places = append(r.Places, trace.Place{Name: a.Name(), NS: ns, Flow: foreign.Flow{Proto: to.proto}})
	}
	return nil
}

// openPlace opens the namespace of a container, or one with a name or path.
func openPlace(v *inventory.Inventory, name string) (trace.Place, error) {
	found, err := v.Find(name)
	path := ""
	if err == nil {
		name, path = found[0].Name(), found[0].NetNSPath()
	} else if named, nerr := sandbox.NetNSPath(name); nerr == nil {
		path = named
	}
	ns, oerr := netns.Open(path)
	if oerr != nil && err != nil {
		return trace.Place{}, spec.Errorf(spec.CodeUnknown, "%q is neither a container with an attachment nor a network namespace (`cni-exec ls` lists them)", name)
	}
	return trace.Place{Name: name, NS: ns}, oerr
}

// published returns the addresses of an attachment to which the host's port leads, if it has one.
// gets reports whether the attachment has the address of the target itself.
func (to traceTarget) published(a *inventory.Entry) (targets []netip.AddrPort, gets bool) {
	for _, p := range a.Addresses() {
		gets = gets || p.Addr() == to.addr
	}
	for _, m := range a.Ports {
		ip, _ := netip.ParseAddr(m.HostIP)
		host := hostport.Port{Proto: m.Protocol, IP: ip, Port: m.HostPort}
		if m.HostPort != to.port || hostport.ProtoNumber(m.Protocol) != to.proto || to.addr.IsValid() && !host.InFamily(to.addr) {
			continue
		}
		for _, p := range a.Addresses() {
			if host.InFamily(p.Addr()) {
				targets = append(targets, netip.AddrPortFrom(p.Addr(), m.ContainerPort))
			}
		}
	}
	return targets, gets
}

// dial returns the destination of --send. For a port of this host it is the address on which the
// port is published, or else one of this host's addresses, preferably IPv4.
func (to traceTarget) dial(ns *netns.NS, v *inventory.Inventory) (netip.AddrPort, error) {
	if to.addr.IsValid() {
		return netip.AddrPortFrom(to.addr, to.port), nil
	}
	for _, a := range v.Entries {
		for _, m := range a.Ports {
			ip, _ := netip.ParseAddr(m.HostIP)
			if m.HostPort == to.port && hostport.ProtoNumber(m.Protocol) == to.proto && ip.IsValid() && !ip.IsUnspecified() {
				return netip.AddrPortFrom(ip, to.port), nil
			}
		}
	}
	addrs, err := trace.Addresses(ns)
	if err == nil && len(addrs) == 0 {
		err = errors.New("this host has no address")
	}
	if err != nil {
		return netip.AddrPort{}, err
	}
	return netip.AddrPortFrom(addrs[max(0, slices.IndexFunc(addrs, netip.Addr.Is4))], to.port), nil
}

// parseTraceTarget reads PROTO/PORT or PORT/PROTO, or ADDRESS[:PORT][/PROTO].
func parseTraceTarget(text string) (to traceTarget, err error) {
	if proto, port, ok := protoPort(text); ok && !strings.ContainsAny(port, ".:[") {
		to.proto = hostport.ProtoNumber(proto)
		if to.port, err = parsePort(port); err != nil {
			return to, fmt.Errorf("%q: a port is a number from 1 to 65535", text)
		}
		return to, nil
	}
	bad := fmt.Errorf("%q must be PROTO/PORT, as tcp/8080, or ADDRESS[:PORT][/PROTO], as 192.0.2.7:443", text)
	host, proto, hasProto := strings.Cut(text, "/")
	if proto = strings.ToLower(proto); hasProto {
		if !slices.Contains(protocols, proto) {
			return to, bad
		}
		to.proto = hostport.ProtoNumber(proto)
	}
	if ap, perr := netip.ParseAddrPort(host); perr == nil && ap.Port() != 0 {
		to.addr, to.port = ap.Addr().Unmap(), ap.Port()
		if to.proto == 0 {
			to.proto = unix.IPPROTO_TCP
		}
	} else if to.addr, perr = netip.ParseAddr(strings.Trim(host, "[]")); perr != nil {
		return to, bad
	}
	if to.addr = to.addr.Unmap(); to.addr.Zone() != "" {
		return to, fmt.Errorf("%q: an address with a zone cannot be traced", text)
	}
	return to, nil
}

// printTrace prints the steps, the outcome, and what to do.
func (c *traceCall) printTrace(t *trace.Trace) (int, error) {
	exit := exitOK
	if !t.Reached {
		exit = exitError
	}
	if c.output == outputJSON {
		_, err := c.writeJSON(t)
		return exit, err
	}
	var b strings.Builder
	for _, s := range t.Steps {
		b.WriteString(spec.Printable(s.String()) + "\n")
	}
	b.WriteString(spec.Printable(t.Outcome) + "\n")
	if t.Advice != "" {
		b.WriteString("    " + spec.Printable(t.Advice) + "\n")
	}
	_, err := c.write(b.String())
	return exit, err
}
