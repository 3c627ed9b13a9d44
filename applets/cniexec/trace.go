package cniexec

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cnibox/cnibox/applets/cniexec/inventory"
	"github.com/cnibox/cnibox/applets/cniexec/sandbox"
	"github.com/cnibox/cnibox/applets/cniexec/trace"
	"github.com/cnibox/cnibox/applets/hostport"
	"github.com/cnibox/cnibox/internal/netns"
	"github.com/cnibox/cnibox/nft/foreign"
	"github.com/cnibox/cnibox/spec"
)

func traceVerb() *verb {
	return &verb{name: "trace", group: "Look", operands: "PROTO/PORT | [ID|NETNS] ADDRESS", summary: "follow a packet, as the kernel reports it", new: func(c *call) action { return &traceCall{call: c} },
		text: `It waits for the first packet of a connection to a port of this host, or to
ADDRESS[:PORT][/PROTO] from a container or by way of this host, and prints the
rules that it meets, its route, neighbour and socket, and what to do if it is
lost. PROTO is tcp, udp or sctp. The exit code is 1 if the packet does not come,
does not get there or, of TCP or SCTP with --send, gets no answer. Nothing is
left, however it ends.`,
		examples: []example{
			{"cni-exec trace tcp/8080", "from a client to a published port"},
			{"cni-exec trace c1 192.0.2.7:443 --send", "from a container, by a connection of this program"},
		},
	}
}

// A traceCall is one call of trace.
type traceCall struct {
	*call
	wait time.Duration
	send bool
}

func (c *traceCall) flags(f *flagSet) {
	c.wait = 10 * time.Second
	f.time(&c.wait, "wait", "`TIME` how long to wait for the packet; default 10s")
	f.BoolVar(&c.send, "send", false, "send it, and wait for the answer: from the container, or from this host, which no rule of prerouting and forward sees")
	f.outputs("`json` print JSON")
}

// A traceTarget is the destination of the packet: zero are the address of this host, any port and any protocol.
type traceTarget struct{ spec.Port }

// proto returns the number of the protocol; 0: any.
func (to traceTarget) proto() uint8 {
	if to.Protocol == "" {
		return 0
	}
	return hostport.ProtoNumber(to.Protocol)
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
	case len(operands) == 2 && !to.HostIP.IsValid():
		return 0, usage("trace: %q names no address: from a container it is ADDRESS:PORT", operands[1])
	case c.send && to.HostPort == 0:
		return 0, usage("trace: --send needs a port: %s:PORT", operands[len(operands)-1])
	}
	v, err := c.readInventory()
	if err != nil {
		return 0, err
	}
	v.ReadHolds(ctx, inventory.Publishing(v.Entries))
	r := trace.Request{Wait: c.wait}
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
			return trace.Dial(r.Places[0].NS, to.proto(), dst)
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
	flow := foreign.Flow{Proto: to.proto(), Dst: to.HostIP, Port: to.HostPort}
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
		host.Src = slices.DeleteFunc(addrs, func(a netip.Addr) bool { return a.Is4() != to.HostIP.Is4() })
		if len(host.Src) == 0 {
			return spec.Errorf(spec.CodeUnknown, "%s has no address that could send to %s", from, to.HostIP)
		}
	}
	r.Places = append(r.Places, trace.Place{Name: "host", NS: netns.Host(), Flow: host})
	for _, a := range v.Entries {
		published, gets := to.published(a)
		if from == "" && !to.HostIP.IsValid() {
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
		r.Places = append(r.Places, trace.Place{Name: a.Name(), NS: ns, Flow: foreign.Flow{Proto: to.proto()}})
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
		return trace.Place{}, noPlace(name)
	}
	return trace.Place{Name: name, NS: ns}, oerr
}

func noPlace(name string) error {
	return spec.Errorf(spec.CodeUnknown, "%q is neither a container with an attachment nor a network namespace (`cni-exec ls` lists them)", name)
}

// published returns the addresses of an attachment to which the host's port leads, if it has one.
// gets reports whether the attachment has the address of the target itself.
func (to traceTarget) published(a *inventory.Entry) (targets []netip.AddrPort, gets bool) {
	for _, p := range a.Addresses() {
		gets = gets || p.Addr() == to.HostIP
	}
	for _, m := range a.Ports {
		if m.HostPort != to.HostPort || m.Protocol != to.Protocol || to.HostIP.IsValid() && !m.InFamily(to.HostIP) {
			continue
		}
		for _, p := range a.Addresses() {
			if m.InFamily(p.Addr()) {
				targets = append(targets, netip.AddrPortFrom(p.Addr(), m.ContainerPort))
			}
		}
	}
	return targets, gets
}

// dial returns the destination of --send. For a port of this host it is the address on which the
// port is published, or else one of this host's addresses, preferably IPv4.
func (to traceTarget) dial(ns *netns.NS, v *inventory.Inventory) (netip.AddrPort, error) {
	if to.HostIP.IsValid() {
		return netip.AddrPortFrom(to.HostIP, to.HostPort), nil
	}
	for _, a := range v.Entries {
		for _, m := range a.Ports {
			if m.HostPort == to.HostPort && m.Protocol == to.Protocol && m.HostIP.IsValid() && !m.HostIP.IsUnspecified() {
				return netip.AddrPortFrom(m.HostIP, to.HostPort), nil
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
	return netip.AddrPortFrom(addrs[max(0, slices.IndexFunc(addrs, netip.Addr.Is4))], to.HostPort), nil
}

// parseTraceTarget reads PROTO/PORT or PORT/PROTO, or ADDRESS[:PORT][/PROTO].
func parseTraceTarget(text string) (to traceTarget, err error) {
	ports, err := parsePorts(text)
	port, protocol, known := cutProtocol(text)
	switch {
	case err != nil && known && protocol != "" && !strings.ContainsAny(port, ".:["):
		return to, fmt.Errorf("%q: %w", text, errPorts)
	case err != nil, len(ports) > 1, ports[0].ContainerPort != 0, !ports[0].HostIP.IsValid() && protocol == "":
		return to, fmt.Errorf("%q must be PROTO/PORT, as tcp/8080, or ADDRESS[:PORT][/PROTO], as 192.0.2.7:443", text)
	case ports[0].HostIP.Zone() != "":
		return to, fmt.Errorf("%q: an address with a zone cannot be traced", text)
	}
	return traceTarget{ports[0]}, nil
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
