//go:build !no_dhcp

package applets

import (
	"context"
	"errors"
	"os"
	"slices"

	"cnibox/dhcp"
	"cnibox/spec"
)

func init() {
	register(&Applet{
		Name:    "dhcp",
		Summary: "addresses from the DHCP servers of the network, leased by a daemon",
		Help: `
Needs the daemon, cnibox dhcp daemon, which keeps the leases. In "ipam":

key               type    default             meaning
daemonSocketPath  string  /run/cni/dhcp.sock  where the daemon listens; leases lie beside it
provide           list    -                   options to send: of option, value, fromArg
  option          string  -                   a name below, or 0 to 255
  value           string  -                   sent as it is, at most 255 bytes
  fromArg         string  -                   key of CNI_ARGS whose value is sent, if it is there
request           list    -                   options to ask for: of option, skipDefault
  skipDefault     bool    false               ask for nothing else
priority          number  0                   metric of all routes; 0: the kernel's choice
ipv4              bool    true                lease an address by DHCPv4
ipv6              bool    false               lease an address by DHCPv6; the gateway comes by
                                              router advertisement, so accept_ra must stay on

Names of options: dhcp-client-identifier (61), subnet-mask (1), routers (3), host-name (12),
user-class (77), vendor-class-identifier (60). Asked for by default: 1, 121, 3, 33, 6, 15, 119,
26 and 42. The result has address, gateway, routes, and dns; a smaller MTU (26) is set on the
link unless the network has an "mtu". Time servers (42) are in the lease file alone.

cnibox dhcp daemon [-socketpath PATH] [-hostprefix DIR] [-pidfile PATH] [-broadcast]
                   [-timeout 10s] [-resendmax 62s] [-resendtimeout 208s]
-socketpath: as daemonSocketPath; -hostprefix: where the host's root is mounted, for the socket
and CNI_NETNS; -pidfile: write the process ID there; -broadcast: ask servers to answer by
broadcast; -timeout: for one answer; -resendmax: between attempts to get a lapsed lease back;
-resendtimeout: for a first lease. SIGTERM ends it, the leases stay and are taken up again.
A socket may come from systemd (LISTEN_FDS).`,
		Verbs: spec.Verbs{
			Add: addDHCP, Check: checkDHCP, Del: delDHCP, GC: gcDHCP, Status: statusDHCP, Get: getDHCP,
			IPAM: true, Args: true,
		},
		Daemon: dhcpDaemonMain,
	})
}

// call asks the daemon about this attachment. Errors have the code of the daemon, or 11
// if there is none that answers.
func (p *dhcpPlugin) call(ctx context.Context, verb spec.Verb) ([]*dhcp.Lease, error) {
	leases, err := callDHCP(ctx, p.socket, &dhcpCall{verb, ownerOf(p.Attachment), p.conf})
	if errors.Is(err, errNoDaemon) {
		err = spec.Errorf(spec.CodeTryAgain, "error dialing DHCP daemon").WithDetails("%v", err)
	}
	return leases, err
}

// addDHCP has the daemon get a lease, however often it is asked. The link is there and
// may be down.
func addDHCP(ctx context.Context, r *spec.Request) (*spec.Result, error) {
	p, err := readDHCP(r)
	if err != nil {
		return nil, err
	}
	leases, err := p.call(ctx, spec.Add)
	if err != nil {
		return nil, err
	}
	return dhcpResult(leases, p.conf.Priority), nil
}

// dhcpResult tells leases in the words of the specification.
func dhcpResult(leases []*dhcp.Lease, priority int) *spec.Result {
	res := &spec.Result{}
	const scopeLink = 253 // RT_SCOPE_LINK, include/uapi/linux/rtnetlink.h
	for _, l := range leases {
		res.IPs = append(res.IPs, spec.IP{Address: l.Address, Gateway: l.Gateway})
		for _, route := range l.Routes {
			out := spec.Route{Dst: route.Dst, GW: route.GW, Priority: priority}
			if !route.GW.IsValid() {
				out.Scope = new(scopeLink)
			}
			res.Routes = append(res.Routes, out)
		}
		for _, a := range l.DNS {
			res.DNS.Nameservers = append(res.DNS.Nameservers, a.String())
		}
		if res.DNS.Domain == "" {
			res.DNS.Domain = l.Domain
		}
		res.DNS.Search = append(res.DNS.Search, l.Search...)
	}
	return res
}

// checkDHCP asks the daemon for the lease and compares it with prevResult. It never
// gets a lease, and never waits for a server: the reference's CHECK does both.
func checkDHCP(ctx context.Context, r *spec.Request) error {
	p, err := readDHCP(r)
	if err != nil {
		return err
	}
	leases, err := p.call(ctx, spec.Check)
	if err != nil {
		return err
	}
	return compareDHCP(r, leases)
}

// compareDHCP wants the address of each lease in prevResult.
func compareDHCP(r *spec.Request, leases []*dhcp.Lease) error {
	for _, l := range leases {
		if !slices.ContainsFunc(r.Prev.IPs, func(ip spec.IP) bool { return ip.Address == l.Address }) {
			return spec.Errorf(spec.CodeCheck, "the lease of %s is of %s by now, which prevResult does not have", r.Attachment, l.Address)
		}
	}
	return nil
}

// delDHCP gives the leases back: the daemon does, or without one the plugin itself. It
// fails only with what may work the next time.
func delDHCP(ctx context.Context, r *spec.Request) error {
	p, err := newDHCP(r)
	if err != nil {
		return err
	}
	return p.release(ctx, r.Attachment)
}

// release gives the leases of an attachment back. Without a daemon, with one that does
// not answer or with a stranger's, the record is what there is to go by; a daemon that
// finds the record gone lets go of the lease.
func (p *dhcpPlugin) release(ctx context.Context, a spec.Attachment) error {
	_, err := callDHCP(ctx, p.socket, &dhcpCall{Verb: spec.Del, recordOwner: ownerOf(a)})
	if err == nil {
		return nil
	}
	p.Warn("%v: its part is done without it", err)
	var rec dhcpRecord
	rerr := p.leases.read(dhcpLeaseName(a), &rec)
	if errors.Is(rerr, os.ErrNotExist) {
		return nil
	}
	if rerr != nil { // nobody can use it
		return p.leases.remove(dhcpLeaseName(a))
	}
	store := &dhcpStore{dir: p.leases, owner: ownerOf(a)}
	h := dhcp.Resume(rec.State, dhcp.Settings{Log: func(line string) { p.Warn("%s", line) }}, store)
	if !h.Fresh() {
		return store.Drop()
	}
	return h.Release(ctx)
}

// gcDHCP gives back what the network's other attachments hold.
func gcDHCP(ctx context.Context, r *spec.Request) error {
	p, err := newDHCP(r)
	if err != nil {
		return err
	}
	valid := map[spec.Attachment]bool{}
	for _, a := range r.Valid {
		valid[a] = true
	}
	return p.leases.each(func(name string) error {
		var rec dhcpRecord
		err := p.leases.read(name, &rec)
		a := spec.Attachment{Network: rec.Network, ContainerID: rec.ContainerID, IfName: rec.IfName}
		if err == nil && a.Network == r.Network && !valid[a] && name == dhcpLeaseName(a) {
			return p.release(ctx, a)
		}
		return nil
	})
}

// statusDHCP is healthy if our daemon answers. Code 50.
func statusDHCP(ctx context.Context, r *spec.Request) error {
	p, err := readDHCP(r)
	if err != nil {
		return err
	}
	if _, err := callDHCP(ctx, p.socket, &dhcpCall{Verb: spec.Status}); err != nil {
		return spec.Errorf(spec.CodeNotReady, "no lease can be had: %w", err)
	}
	return nil
}

// getDHCP answers with prevResult if the daemon has the leases and they agree with it,
// and without one from the leases. An attachment without a record, or whose leases the
// daemon no longer has, is unknown: code 3. A daemon that does not answer is an error.
func getDHCP(ctx context.Context, r *spec.Request) (*spec.Result, error) {
	p, err := newDHCP(r)
	if err != nil {
		return nil, err
	}
	var rec dhcpRecord
	err = p.leases.read(dhcpLeaseName(r.Attachment), &rec)
	if errors.Is(err, os.ErrNotExist) || err == nil && !rec.Given {
		return nil, spec.Errorf(spec.CodeUnknown, "no lease of %s is known", r.Attachment)
	}
	if err != nil {
		return nil, spec.Errorf(spec.CodeIO, "lease of %s: %w", r.Attachment, err)
	}
	leases, err := p.call(ctx, spec.Check)
	if e := spec.AsError(err); e != nil && e.Code == spec.CodeCheck {
		return nil, spec.Errorf(spec.CodeUnknown, "%s is not known any more: %v", r.Attachment, err)
	}
	if err != nil {
		return nil, err
	}
	if r.Prev == nil {
		return dhcpResult(leases, rec.Priority), nil
	}
	if err := compareDHCP(r, leases); err != nil {
		return nil, err
	}
	return r.Prev, nil
}
